"""Weights in proportion to the energies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..torch_transforms import readable
from .normalizer import Normalizer, RowState, largest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Proportional(Normalizer):
    """w_ij = e_ij / Σ_j e_ij, for energies ≥ 0: the look-up family. State: the sum.

    A row whose energies are all zero (no key matches) gives zeros.
    """

    absent = 0.0
    kernel = "proportional"
    opaque = False

    def __call__(self, e: Tensor) -> Tensor:
        _check(e)
        e = e / _power_of_two(e)
        return self.weigh(e, e.sum(dim=-1, keepdim=True), e)

    def state(self, e: Tensor) -> Tensor:
        _check(e)
        return e.sum(dim=-1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        nothing = state == 0
        return (e / state.masked_fill(nothing, 1)).masked_fill(nothing, 0)

    def anchor(self, e: Tensor) -> Tensor | None:
        return None if self.opaque else _power_of_two(e)

    def relative_(self, e: Tensor, anchor: Tensor) -> Tensor:
        return e.div_(anchor)

    def one_number(self, state: RowState) -> Tensor:
        assert state.anchor is not None
        return state.rest * state.anchor

    def is_enough(self, state: Tensor) -> Tensor:
        return state.isfinite()


def _power_of_two(e: Tensor) -> Tensor:
    """One within a factor of 2 of the largest energy of each row: dividing by it rounds nothing, and no sum overflows.

    1 for a row of zeros, and for one that is not finite.
    """
    top = largest(e)
    _, exponent = torch.frexp(top)
    power = torch.ldexp(torch.ones_like(top), exponent - 1)
    return torch.where(top.isfinite() & (top > 0), power, 1)


def _check(e: Tensor) -> None:
    if readable(e) and bool((e < 0).any()):
        raise ValueError(f"Proportional needs energies ≥ 0, got {e.min().item():.4g}; use Softmax() for any energy")
