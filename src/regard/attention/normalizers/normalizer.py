"""Normalizers: one row of energies in, one distribution over the keys out.

Each leaves one number per row, its *state*, after which any weight is a pointwise function of its energy:
`weigh(e_ij, state_i)`. That is how `Weights` answers without the matrix.

A masked key has the energy `absent`, chosen so that its weight is zero; a row with every key masked gives zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..part import Part

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Normalizer(Part):
    """A subclass gives `__call__`, `state` and `weigh`."""

    absent: float = -torch.inf
    """The energy of a masked key."""
    temperature: float = 1.0
    """What a softmax divides energies by."""
    power: float = 1.0
    """For thresholds τ, w_ij = max(energy_scale · e_ij − τ_i, 0) ** power."""
    energy_scale: float = 1.0
    samples: bool = False
    """Whether it draws random numbers now."""
    nonnegative: bool = True
    """Whether no weight is less than 0, so that masked keys, which weigh 0, can be left out of a maximum."""
    pointwise: bool = True
    """Whether `weigh` takes any columns of a row; else it takes all of them."""
    selects_key: bool = False
    """Whether its state is the index of one key per row, −1 for none."""

    def __call__(
        self, e: Float[Tensor, "*batch k"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch k"]:
        """The weights of whole rows, differentiable: the formula. `generator` is for those that sample."""
        raise NotImplementedError

    def state(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, " *batch"]:
        """The one number per row from which `weigh` gives any weight of that row."""
        raise NotImplementedError

    def both(
        self, e: Float[Tensor, "*batch k"], generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, " *batch"]]:
        """Weights and state of the same rows (of the same sample, where it samples)."""
        return self(e), self.state(e)

    def weigh(
        self, e: Float[Tensor, "*batch k"], state: Float[Tensor, "*batch 1"], j: Int[Tensor, " k"]
    ) -> Float[Tensor, "*batch k"]:
        """The weights of the columns `j` of rows with this state."""
        raise NotImplementedError

    def log_weigh_(self, e: Float[Tensor, "*batch k"], state: Float[Tensor, "*batch 1"]) -> Tensor | None:
        """log w, computed in place of the energies; None where it is no cheaper than the logarithm of the weights."""
        return None


def empty_rows(e: Float[Tensor, "*batch k"]) -> Tensor:
    """Rows whose every key is masked, [*batch, 1]."""
    return (e == -torch.inf).all(dim=-1, keepdim=True)
