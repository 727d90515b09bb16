"""Softmax, the usual normalizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..part import positive
from .normalizer import ShiftInvariant, empty_rows, largest, mark_empty

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Softmax(ShiftInvariant):
    """w_ij = exp(e_ij / T) / Σ_j exp(e_ij / T). State: log Σ_j exp(e_ij / T), +∞ for an empty row."""

    temperature: float = 1.0
    kernel = "softmax"
    opaque = False

    def __post_init__(self) -> None:
        positive("Softmax's temperature", self.temperature, "; Hard() is the limit 0")

    def __call__(self, e: Tensor, generator: torch.Generator | None = None) -> Tensor:
        empty = empty_rows(e)
        # Filled before the softmax, not only after it: NaN would come back through the gradient.
        e = e.masked_fill(empty, 0)
        if self.temperature != 1:
            e = self.scaled(e - largest(e))  # moved first: large energies would overflow
        return torch.softmax(e, dim=-1).masked_fill(empty, 0)

    def scaled(self, e: Tensor) -> Tensor:
        return e if self.temperature == 1 else e / self.temperature

    def state(self, e: Tensor) -> Tensor:
        return mark_empty(torch.logsumexp(self.scaled(e), dim=-1))

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return torch.exp(self.scaled(e) - state)

    def log_weigh_(self, e: Tensor, state: Tensor) -> Tensor | None:
        return (e if self.temperature == 1 else e.div_(self.temperature)).sub_(state)
