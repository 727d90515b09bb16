"""Forms: the four ways two projected vectors become one energy.

An energy is a projection of each side followed by one of these, and kernels differ only by form, so a kernel
written for a form serves every energy that has it: `Dot`, `ScaledDot`, `Cosine` and `General` all end in a dot
product, `Additive` and `Concat` in a tanh, `Gaussian` and `InverseDistance` in a distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class DotForm:
    """e_ij = scale · a_i·b_j"""

    scale: float = 1.0

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        return (a * self.scale) @ b.mT

    def cost(self, width: int) -> int:
        """How many numbers one energy of a block holds while it is computed."""
        return 1


@dataclass(frozen=True)
class TanhForm:
    """e_ij = w · tanh(a_i + b_j)"""

    weight: Float[Tensor, " d"]

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        hidden = torch.tanh(a[..., :, None, :] + b[..., None, :, :])  # [..., q, k, d]
        return hidden @ self.weight.to(hidden.dtype)

    def cost(self, width: int) -> int:
        return width


NEAR = 2.0**-60
"""Distances below this count as equal. 1/d² still fits float32 there, so the gradient does not overflow either."""


@dataclass(frozen=True)
class DistanceForm:
    """e_ij = −|a_i − b_j|² / 2, or where `inverse` 1 / |a_i − b_j|"""

    inverse: bool = False

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        apart = distance(a, b)
        return 1 / apart.clamp_min(NEAR) if self.inverse else apart.square() * -0.5

    def cost(self, width: int) -> int:
        return 1


def distance(a: Tensor, b: Tensor, p: float = 2.0) -> Float[Tensor, "*batch q k"]:
    # cdist never builds [..., q, k, d]. Its matrix-product mode is refused: |a|² + |b|² − 2ab cancels badly for
    # near neighbours, which are the ones that matter here. It has no half precision on CPU.
    return torch.cdist(wide(a), wide(b), p=p, compute_mode="donot_use_mm_for_euclid_dist")


def wide(x: Tensor) -> Tensor:
    """float32 at least: half precision overflows where its squares and quotients do."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class PairForm:
    """e_ij = function(a_i, b_j), any function that looks at one query and one key at a time."""

    function: Callable[[Tensor, Tensor], Tensor]
    foreign: bool = True
    """A user's function: it may build a [..., q, k, d] tensor on its way, and its result may be a view of an input."""

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        e = self.function(a, b)
        if e.shape[-2:] != (a.shape[-2], b.shape[-2]):
            raise ValueError(
                f"energy gave shape {list(e.shape)}; expected [..., {a.shape[-2]}, {b.shape[-2]}] "
                f"for queries {list(a.shape)} and keys {list(b.shape)}"
            )
        return e

    def cost(self, width: int) -> int:
        return width if self.foreign else 1


Form = DotForm | TanhForm | DistanceForm | PairForm
