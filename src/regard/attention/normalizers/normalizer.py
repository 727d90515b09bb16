"""Normalizers: one row of energies in, one distribution over the keys out.

Each leaves one number per row, its *state*, after which any weight is a pointwise function of its energy:
`weigh(e_ij, state_i)`. That is how `Weights` answers without the matrix. A row of large energies needs two numbers
(`RowState`): its largest energy, and the state of the energies relative to that.

A masked key has the energy `absent`, chosen so that its weight is zero; a row with every key masked gives zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ..part import Part
from ..torch_transforms import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ..block_indices import Index

ONE_NUMBER = 256.0
"""Up to this size one float32 per row is enough. It is rounded by at most 2⁻²⁴ of its size, 1.5e-5, and a softmax's
weights are then wrong by that share. Energies of this size are themselves rounded as much."""


class RowState(NamedTuple):
    """What `Weights` keeps of each row."""

    rest: Float[Tensor, "*batch"]
    """The normalizer's state: of the row's energies, or of those relative to `anchor`."""
    anchor: Float[Tensor, "*batch"] | None = None
    """The largest energy of each row; None where `rest` alone holds every row."""

    def map(self, function: Callable[[Tensor], Tensor]) -> RowState:
        return RowState(function(self.rest), None if self.anchor is None else function(self.anchor))


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
    sink: float | Tensor | None = None
    """The energy of a softmax's sink."""
    nonnegative: bool = True
    """Whether no weight is less than 0, so that masked keys, which weigh 0, can be left out of a maximum."""
    pointwise: bool = True
    """Whether `weigh` takes any columns of a row; else it takes all of them."""
    selects_key: bool = False
    """Whether its state is the index of one key per row, −1 for none."""

    def check(self, batch: tuple[int, ...], device: torch.device) -> None:
        """Raise ValueError where it cannot be applied to energies of this leading shape."""

    def check_rows(self, rows: Callable[[], Float[Tensor, "*batch q k"]]) -> None:
        """Raise ValueError where the weights of a row of energies depend on the rows beside it, which blocks change."""

    def of_block(self, batch: tuple[int, ...], n: Index) -> Normalizer:
        """The normalizer of some matrices, counted over the flattened batch, where it differs among them."""
        return self

    def __call__(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
        """The weights of whole rows, differentiable: the formula."""
        raise NotImplementedError

    def state(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, " *batch"]:
        """The one number per row from which `weigh` gives any weight of that row."""
        raise NotImplementedError

    def both(self, e: Float[Tensor, "*batch k"]) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, " *batch"]]:
        """Weights and state of the same rows (of the same sample, where it samples)."""
        return self(e), self.state(e)

    def weigh(
        self, e: Float[Tensor, "*batch k"], state: Float[Tensor, "*batch 1"], j: Int[Tensor, " k"]
    ) -> Float[Tensor, "*batch k"]:
        """The weights of the columns `j` of rows with this state."""
        raise NotImplementedError

    def logsumexp(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch"] | None:
        """The logarithm of a softmax's denominator, differentiable, −∞ for an empty row; None for other normalizers."""
        return None

    def log_weigh_(self, e: Float[Tensor, "*batch k"], state: Float[Tensor, "*batch 1"]) -> Tensor | None:
        """log w, computed in place of the energies; None where it is no cheaper than the logarithm of the weights."""
        return None

    # Rows of any size: energies relative to the largest of their row

    def anchor(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch 1"] | None:
        """The energy that those of each row are taken relative to; None for a normalizer that has no such energy."""
        return None

    def relative_(self, e: Float[Tensor, "*batch k"], anchor: Float[Tensor, "*batch 1"]) -> Tensor:
        """Energies relative to the anchor of their row, in place, no larger than those of the anchor itself.

        A block of other keys may round an energy otherwise than the block its row state comes from, and the
        difference may be large where energies are.
        """
        raise NotImplementedError

    def one_number(self, state: RowState) -> Float[Tensor, "*batch"]:
        """Anchor and rest joined: the state of the energies as they are."""
        raise NotImplementedError

    def is_enough(self, state: Float[Tensor, "*batch"]) -> Bool[Tensor, "*batch"]:
        """Of which rows this one number is enough."""
        return torch.ones_like(state, dtype=torch.bool)

    def row_state(self, e: Float[Tensor, "*batch k"]) -> RowState:
        """The state of rows of any size. The energies are changed."""
        anchor = self.anchor(e)
        if anchor is None:
            return RowState(self.state(e))
        return RowState(self.state(self.relative_(e, anchor)), anchor.squeeze(-1))

    def joined(self, state: RowState) -> RowState:
        """The same without an anchor, where one number is enough for every row."""
        if state.anchor is None:
            return state
        one = self.one_number(state)
        return RowState(one) if self.holds(one) else state

    def holds(self, state: Float[Tensor, "*batch"]) -> bool:
        """Whether this one number is enough for every row; assumed where it cannot be read."""
        return not readable(state) or bool(self.is_enough(state).all())

    def weigh_rows(self, e: Float[Tensor, "*batch k"], state: RowState, j: Int[Tensor, " k"]) -> Tensor:
        """`weigh` for rows of any size. The energies may be changed."""
        if state.anchor is not None:
            e = self.relative_(e, state.anchor[..., None])
        return self.weigh(e, state.rest[..., None], j)

    def log_weigh_rows(self, e: Float[Tensor, "*batch k"], state: RowState) -> Tensor | None:
        """`log_weigh_` for rows of any size; None, with the energies as they were, where it is not defined."""
        if self.opaque or type(self).log_weigh_ is Normalizer.log_weigh_:
            return None
        if state.anchor is not None:
            e = self.relative_(e, state.anchor[..., None])
        return self.log_weigh_(e, state.rest[..., None])


class ShiftInvariant(Normalizer):
    """A normalizer with normalize(e + c) = normalize(e): a row is moved so that its largest energy is 0.

    A subclass of a known one may compute something else, and is given the energies as they are.
    """

    def scaled(self, e: Tensor) -> Tensor:
        """The energies times what the formula multiplies them by."""
        raise NotImplementedError

    def anchor(self, e: Tensor) -> Tensor | None:
        return None if self.opaque else largest(e)

    def relative_(self, e: Tensor, anchor: Tensor) -> Tensor:
        return e.sub_(anchor).clamp_(max=0)

    def one_number(self, state: RowState) -> Tensor:
        assert state.anchor is not None
        moved = self.scaled(state.anchor)
        return state.rest + moved.masked_fill(moved == torch.inf, -torch.inf)  # +∞ would be an empty row

    def is_enough(self, state: Tensor) -> Tensor:
        return ~(state.abs() > ONE_NUMBER) | (state == torch.inf)  # of a row of NaN all numbers are NaN


def largest(e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch 1"]:
    """The largest energy of each row, without a graph; 0 for a row whose every key is masked."""
    if not e.shape[-1]:
        return e.new_zeros(*e.shape[:-1], 1)
    top = e.detach().amax(dim=-1, keepdim=True)
    return top.masked_fill(top == -torch.inf, 0)


def empty_rows(e: Float[Tensor, "*batch k"]) -> Tensor:
    """Rows whose every key is masked, [*batch, 1]."""
    return (e == -torch.inf).all(dim=-1, keepdim=True)


def mark_empty(total: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """A log-sum-exp as a row state: +∞ instead of −∞ for an empty row, and −∞, which is none, where it overflowed."""
    return torch.where(total.isinf(), -total, total)
