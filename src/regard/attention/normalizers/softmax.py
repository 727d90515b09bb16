"""Softmax, the usual normalizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..part import positive
from .normalizer import Normalizer, empty_rows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Softmax(Normalizer):
    """w_ij = exp(e_ij / T) / Σ_j exp(e_ij / T). State: log Σ_j exp(e_ij / T), +∞ for an empty row."""

    temperature: float = 1.0
    kernel = "softmax"
    opaque = False

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

    def log_weigh_(self, e: Tensor, state: Tensor) -> Tensor | None:
        return (e if self.temperature == 1 else e.div_(self.temperature)).sub_(state)
