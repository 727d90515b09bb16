"""Sparse normalizers: weights that can be exactly zero. State: the threshold τ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..torch_transforms import readable
from .normalizer import RowState, ShiftInvariant, empty_rows, largest

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class _Thresholded(ShiftInvariant):
    """w_ij = max(x_ij − τ_i, 0) ** power with x = energy_scale · e, and τ such that the row sums to one."""

    def scaled(self, e: Tensor) -> Tensor:
        return e

    def threshold(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch 1"]:
        """τ of rows whose largest x is 0."""
        raise NotImplementedError

    def raised(self, excess: Tensor) -> Tensor:
        x = excess.clamp_min(0)  # clamped, not masked: a NaN stays one
        return x if self.power == 1 else x.pow(self.power)

    def __call__(self, e: Tensor) -> Tensor:
        kind, empty = e.dtype, empty_rows(e)
        e = e.masked_fill(empty, 0).to(torch.promote_types(kind, torch.float32))  # float16 has no 70,000, the rank
        # Moving a row moves its τ along: near zero, where floats are dense, nothing is lost at any energy. Before it is
        # scaled, since large energies would overflow.
        return self.weights(self.scaled(e - largest(e))).masked_fill(empty, 0).to(kind)

    def weights(self, x: Tensor) -> Tensor:
        """Rows of weights from rows of scaled energies, differentiable."""
        return self.raised(x - self.threshold(x))

    def state(self, e: Tensor) -> Tensor:
        empty, top = empty_rows(e), largest(e)
        threshold = self.threshold(self.scaled(e.masked_fill(empty, 0) - top))
        state = self.one_number(RowState(threshold, top))
        return state.masked_fill(empty, torch.inf).squeeze(-1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return self.raised(self.scaled(e) - state)


@dataclass(frozen=True, slots=True)
class Sparsemax(_Thresholded):
    """w_i = argmin over the simplex of |p − e_i|² = max(e_ij − τ_i, 0) (Martins & Astudillo 2016, algorithm 1)."""

    kernel = "threshold"
    opaque = False

    def threshold(self, x: Tensor) -> Tensor:
        if not x.shape[-1]:
            return x.new_zeros(*x.shape[:-1], 1)
        with torch.no_grad():
            ordered, _ = x.sort(dim=-1, descending=True)
            rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
            kept = 1 + rank * ordered > ordered.cumsum(dim=-1)
            last = kept.sum(dim=-1, keepdim=True)  # the support is the first `last` keys in order
            support = x >= ordered.gather(-1, (last - 1).clamp_min(0))
        # With the support known, τ is linear in the energies, so autograd gives the exact gradient.
        inside = x.where(support, 0)
        return (inside.sum(dim=-1, keepdim=True) - 1) / support.sum(dim=-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Entmax(_Thresholded):
    """w_ij = max((α − 1) e_ij − τ_i, 0)^(1/(α−1)) (Peters, Niculae & Martins 2019, eq. 8).

    α → 1 is softmax, α = 2 sparsemax. τ is found by bisection to the last bit, for any α > 1. A tensor of one number
    gets a gradient (Correia, Niculae & Martins 2019, proposition 1): make `Entmax(self.alpha)` where it is used.
    """

    alpha: float | Tensor = 1.5
    kernel = "threshold"
    opaque = False

    def __post_init__(self) -> None:
        if isinstance(self.alpha, torch.Tensor):
            if self.alpha.dim() or not self.alpha.is_floating_point():
                raise TypeError(
                    f"Entmax's alpha is one number, got {self.alpha.dtype} of shape {list(self.alpha.shape)}; "
                    "expected a float or a floating-point tensor of shape []"
                )
            if not readable(self.alpha):
                return
        if not self.alpha > 1:
            raise ValueError(f"Entmax needs alpha > 1, got {self.alpha}; alpha = 1 is Softmax()")

    @property
    def energy_scale(self) -> float:  # type: ignore[override]
        return float(self.alpha) - 1

    @property
    def power(self) -> float:  # type: ignore[override]
        return 1 / self.energy_scale

    def scaled(self, e: Tensor) -> Tensor:
        return e * (self.alpha - 1)

    def raised(self, excess: Tensor) -> Tensor:
        return excess.clamp_min(0).pow(1 / (self.alpha - 1))

    def weights(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            threshold = self.threshold(x.detach())
            support = x > threshold
        # Two steps of Newton's method for Σ_j w_ij = 1. They leave τ where the bisection found it, and give it its
        # derivatives: of two orders, by x and by α alike (Correia, Niculae & Martins 2019, proposition 1).
        for _ in range(2):
            excess = (x - threshold).where(support, 1)
            w = excess.pow(1 / (self.alpha - 1)).where(support, 0)
            slope = excess.pow((2 - self.alpha) / (self.alpha - 1)).where(support, 0) / (self.alpha - 1)
            threshold = threshold + (w.sum(dim=-1, keepdim=True) - 1) / slope.sum(dim=-1, keepdim=True)
        w = (x - threshold).where(support, 1).clamp_min(0).pow(1 / (self.alpha - 1)).where(support, 0)
        return w / w.sum(dim=-1, keepdim=True)  # what rounding left over

    def threshold(self, x: Tensor) -> Tensor:
        # τ = −s with 1 ≥ s ≥ T^(1−α): Σ ≥ 1 at the first, ≤ 1 at the other. Bisected by the geometric mean, since among
        # many keys s is small, and its digits are the weights'.
        keys, tiny = max(1, x.shape[-1]), torch.finfo(x.dtype).tiny
        high: Tensor = x.new_ones(*x.shape[:-1], 1)
        low: Tensor = (high * keys ** (1 - self.alpha)).clamp_min(tiny)
        span = -math.log(tiny)  # of the logarithm of s; a learned α may not be readable
        if not isinstance(self.alpha, torch.Tensor):
            span = min(span, (self.alpha - 1) * math.log(keys))
        for _ in range(_bits(x.dtype) + 2 + math.ceil(math.log2(1 + span))):
            middle = high.sqrt() * low.sqrt()
            heavy = self.raised(x + middle).sum(dim=-1, keepdim=True) >= 1
            high, low = middle.where(heavy, high), low.where(heavy, middle)
        s: Tensor = high.sqrt() * low.sqrt()
        return -s


def _bits(dtype: torch.dtype) -> int:
    return {torch.float64: 53}.get(dtype, 24)
