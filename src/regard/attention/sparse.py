"""Sparse normalizers: weights that can be exactly zero. State: the threshold τ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .normalizers import Normalizer, empty_rows

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class _Thresholded(Normalizer):
    """w_ij = power(x_ij − τ_i) with x the scaled energies and τ such that the row sums to one."""

    def scaled(self, e: Tensor) -> Tensor:
        raise NotImplementedError

    def threshold(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch 1"]:
        raise NotImplementedError

    def power(self, excess: Tensor) -> Tensor:
        raise NotImplementedError

    def __call__(self, e: Tensor) -> Tensor:
        empty = empty_rows(e)
        x = self.scaled(e.masked_fill(empty, 0))
        # Moving a row moves its τ along: near zero, where floats are dense, nothing is lost at energies of 1e4.
        x = x - x.detach().amax(dim=-1, keepdim=True)
        return self.power(x - self.threshold(x)).masked_fill(empty, 0)

    def state(self, e: Tensor) -> Tensor:
        empty = empty_rows(e)
        return self.threshold(self.scaled(e.masked_fill(empty, 0))).masked_fill(empty, torch.inf).squeeze(-1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return self.power(self.scaled(e) - state)


@dataclass(frozen=True, slots=True)
class Sparsemax(_Thresholded):
    """w_i = argmin over the simplex of |p − e_i|² = max(e_ij − τ_i, 0) (Martins & Astudillo 2016, algorithm 1)."""

    def scaled(self, e: Tensor) -> Tensor:
        return e

    def threshold(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            shifted = x - x.amax(dim=-1, keepdim=True)
            ordered, _ = shifted.sort(dim=-1, descending=True)
            rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
            kept = 1 + rank * ordered > ordered.cumsum(dim=-1)
            last = kept.sum(dim=-1, keepdim=True)  # the support is the first `last` keys in order
            support = shifted >= ordered.gather(-1, (last - 1).clamp_min(0))
        # With the support known, τ is linear in the energies, so autograd gives the exact gradient.
        inside = x.where(support, 0)
        return (inside.sum(dim=-1, keepdim=True) - 1) / support.sum(dim=-1, keepdim=True)

    def power(self, excess: Tensor) -> Tensor:
        return excess.clamp_min(0)


@dataclass(frozen=True, slots=True)
class Entmax(_Thresholded):
    """w_ij = max((α − 1) e_ij − τ_i, 0)^(1/(α−1)) (Peters, Niculae & Martins 2019, eq. 8).

    α → 1 is softmax, α = 2 sparsemax. τ is found by bisection to the last bit, for any α > 1.
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not self.alpha > 1:
            raise ValueError(f"Entmax needs alpha > 1, got {self.alpha}; alpha = 1 is Softmax()")

    def scaled(self, e: Tensor) -> Tensor:
        return e * (self.alpha - 1)

    def power(self, excess: Tensor) -> Tensor:
        inside = excess > 0
        # The inner `where` keeps 0^(negative) out of the gradient when alpha > 2.
        return excess.where(inside, 1).pow(1 / (self.alpha - 1)).where(inside, 0)

    def threshold(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            top = x.amax(dim=-1, keepdim=True)
            low, high = top - 1, top - x.shape[-1] ** (1 - self.alpha)  # Σ ≥ 1 at low, ≤ 1 at high
            for _ in range(_bits(x.dtype) + 2):
                middle = (low + high) / 2
                heavy = self.power(x - middle).sum(dim=-1, keepdim=True) >= 1
                low, high = middle.where(heavy, low), high.where(heavy, middle)
            tau = (low + high) / 2
            excess = x - tau
            # d w / d (x − τ) on the support, for the step below.
            slope = excess.where(excess > 0, 1).pow((2 - self.alpha) / (self.alpha - 1)) / (self.alpha - 1)
            slope = slope.where(excess > 0, 0).sum(dim=-1, keepdim=True)
        # One Newton step on Σ w(x, τ) = 1 with a fixed slope: it polishes τ, and its derivative by x is the
        # implicit function theorem's dτ/dx, so autograd is exact to first order.
        excess_mass: Tensor = self.power(x - tau).sum(dim=-1, keepdim=True) - 1
        polished: Tensor = tau + excess_mass / slope
        return polished


def _bits(dtype: torch.dtype) -> int:
    return {torch.float64: 53}.get(dtype, 24)
