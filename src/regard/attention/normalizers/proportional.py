"""Weights in proportion to the energies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..torch_transforms import readable
from .normalizer import Normalizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Proportional(Normalizer):
    """w_ij = e_ij / Σ_j e_ij, for energies ≥ 0: the look-up family. State: the sum.

    A row whose energies are all zero (no key matches) gives zeros.
    """

    absent = 0.0
    kernel = "proportional"
    opaque = False

    def __call__(self, e: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.weigh(e, self.state(e)[..., None], e)

    def state(self, e: Tensor) -> Tensor:
        if readable(e) and bool((e < 0).any()):
            raise ValueError(f"Proportional needs energies ≥ 0, got {e.min().item():.4g}; use Softmax() for any energy")
        return e.sum(dim=-1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        nothing = state == 0
        return (e / state.masked_fill(nothing, 1)).masked_fill(nothing, 0)
