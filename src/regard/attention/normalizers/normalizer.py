"""Normalizers: one row of energies in, one distribution over the keys out.

Each leaves one number per row, its *state*, after which any weight is a pointwise function of its energy:
`weigh(e_ij, state_i)`. That is what lets `Weights` answer without the matrix. `sparse.py` and `hard.py` have the rest.

A masked key carries the energy `absent`, chosen so that its weight is zero; a row with every key masked gives zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..torch_transforms import traced
from ..validation import positive

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Normalizer:
    absent: float = -torch.inf
    """The energy that stands for a masked key."""

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
        """Weights and state of the same rows (of the same draw, where a normalizer samples)."""
        return self(e), self.state(e)

    def weigh(
        self, e: Float[Tensor, "*batch k"], state: Float[Tensor, "*batch 1"], j: Int[Tensor, " k"]
    ) -> Float[Tensor, "*batch k"]:
        """The weights of some columns `j` of the rows whose state this is."""
        raise NotImplementedError


def empty_rows(e: Float[Tensor, "*batch k"]) -> Tensor:
    """Rows whose every key is masked, [*batch, 1]."""
    return (e == -torch.inf).all(dim=-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Softmax(Normalizer):
    """w_ij = exp(e_ij / T) / Σ_j exp(e_ij / T). State: log Σ_j exp(e_ij / T), +∞ for an empty row."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        positive("Softmax's temperature", self.temperature, "; Hard() is the limit 0")

    def __call__(self, e: Tensor, generator: torch.Generator | None = None) -> Tensor:
        empty = empty_rows(e)
        # Filled before the softmax, not only after it: NaN would come back through the gradient.
        return torch.softmax(e.masked_fill(empty, 0) / self.temperature, dim=-1).masked_fill(empty, 0)

    def state(self, e: Tensor) -> Tensor:
        total = torch.logsumexp(e / self.temperature, dim=-1)
        return total.masked_fill(total == -torch.inf, torch.inf)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return torch.exp(e / self.temperature - state)

    def log_weigh_(self, e: Tensor, state: Tensor) -> Tensor:
        """log w in place of the energies, which are lost."""
        return (e if self.temperature == 1 else e.div_(self.temperature)).sub_(state)


@dataclass(frozen=True, slots=True)
class Proportional(Normalizer):
    """w_ij = e_ij / Σ_j e_ij, for energies ≥ 0: the look-up family. State: the sum.

    A row whose energies are all zero (no key matches) gives zeros.
    """

    absent = 0.0

    def __call__(self, e: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.weigh(e, self.state(e)[..., None], e)

    def state(self, e: Tensor) -> Tensor:
        if not traced() and bool((e < 0).any()):
            raise ValueError(f"Proportional needs energies ≥ 0, got {e.min().item():.4g}; use Softmax() for any energy")
        return e.sum(dim=-1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        nothing = state == 0
        return (e / state.masked_fill(nothing, 1)).masked_fill(nothing, 0)
