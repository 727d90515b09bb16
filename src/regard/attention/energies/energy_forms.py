"""Forms: how two projected vectors become one energy.

An energy is a projection of each side followed by a form. Kernels differ by form only, so a kernel for one form serves
every energy that has it: `Dot`, `ScaledDot`, `Cosine` and `General` end in a dot product, `Additive` and `Concat` in a
tanh, `Gaussian` and `InverseDistance` in a distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from ..kernels.additive import additive_cpu
from ..part import Part
from ..torch_transforms import forward_mode, transformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

TRITON = find_spec("triton") is not None  # found, not imported


class EnergyForm(Part):
    """e_ij = form(a_i, b_j). A subclass gives `__call__`; the rest makes it faster, or visible in the viewer."""

    scale: float = 1.0
    """What dot products are multiplied by."""

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        raise NotImplementedError

    def formula(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        """The same with derivatives of every order."""
        return self(a, b)

    def cost(self, width: int) -> int:
        """How many numbers are held per energy while a block is computed."""
        return width

    def has_kernel(self, device: str, precision: torch.dtype) -> bool:
        """Whether `kernel_energies` can be called there."""
        return False

    def kernel_energies(self, a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"]) -> Float[Tensor, "n q k"]:
        """The energies without a graph, and without the [n, q, k, d] tensor of the formula or faster than by it."""
        raise NotImplementedError

    def write(self, a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"], buffer: Tensor) -> Tensor | None:
        """The energies in the memory of `buffer`, without a graph; None where that is not possible."""
        return None

    def terms(self, q: Float[Tensor, " d"], k: Float[Tensor, "k d"]) -> Float[Tensor, "k d"] | None:
        """The numbers whose sum over d is the energy; None where it is no such sum."""
        return None


@dataclass(frozen=True)
class DotForm(EnergyForm):
    """e_ij = scale · a_i·b_j"""

    scale: float = 1.0
    kernel = trace_key = "dot"
    opaque = False

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        return (a * self.scale) @ b.mT

    def cost(self, width: int) -> int:
        return 1

    def write(self, a: Tensor, b: Tensor, buffer: Tensor) -> Tensor | None:
        return torch.bmm(a * self.scale, b.mT, out=buffer.resize_(a.shape[0], a.shape[1], b.shape[1]))

    def terms(self, q: Tensor, k: Tensor) -> Tensor | None:
        return self.scale * q * k


@dataclass(frozen=True)
class TanhForm(EnergyForm):
    """e_ij = w · tanh(a_i + b_j)"""

    weight: Float[Tensor, " d"]
    kernel = trace_key = "tanh"
    opaque = False

    def __post_init__(self) -> None:
        if not isinstance(self.weight, torch.Tensor):  # a trace may have no such tensor
            raise TypeError(f"TanhForm takes a tensor, got {type(self.weight).__name__}")

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        hidden = torch.tanh(a[..., :, None, :] + b[..., None, :, :])  # [..., q, k, d]
        return hidden @ self.weight.to(hidden.dtype)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> TanhForm:
        return TanhForm(function(self.weight))  # torch.compile cannot trace a copy

    def has_kernel(self, device: str, precision: torch.dtype) -> bool:
        return device == "cpu" or (device == "cuda" and TRITON and precision == torch.float32)

    def kernel_energies(self, a: Tensor, b: Tensor) -> Tensor:
        if a.device.type == "cpu":
            return additive_cpu.energies(a, b, self.weight.to(a.dtype))
        from ..kernels.additive.additive_triton import pairwise

        return pairwise(a, b, self.weight)

    def terms(self, q: Tensor, k: Tensor) -> Tensor | None:
        return self.weight.to(q.dtype) * torch.tanh(q + k)


NEAR = 2.0**-60
"""Distances below this count as equal. 1/d² still fits float32 there, so the gradient does not overflow either."""


@dataclass(frozen=True)
class DistanceForm(EnergyForm):
    """e_ij = −|a_i − b_j|² / 2, or where `inverse` 1 / |a_i − b_j|"""

    inverse: bool = False
    kernel = trace_key = "distance"
    opaque = False

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        apart = distance(a, b)
        return 1 / apart.clamp_min(NEAR) if self.inverse else apart.square() * -0.5

    def formula(self, a: Tensor, b: Tensor) -> Tensor:
        # torch.cdist has one derivative, which is wrong under vmap.
        a, b = wide(a), wide(b)
        if not (transformed() or forward_mode() or (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))):
            return self(a, b)
        square = (a[..., :, None, :] - b[..., None, :, :]).square().sum(-1)  # [..., q, k] of [..., q, k, d]
        if not self.inverse:
            return square * -0.5
        near = square <= NEAR**2
        return square.masked_fill(near, 1).rsqrt().masked_fill(near, 1 / NEAR)

    def cost(self, width: int) -> int:
        return 1

    def terms(self, q: Tensor, k: Tensor) -> Tensor | None:
        return None if self.inverse else (q - k).square() * -0.5


@dataclass(frozen=True)
class EqualForm(EnergyForm):
    """e_ij = 1 where a_i = b_j in every component, else 0"""

    opaque = False

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        # The 0-norm counts the components that differ.
        return (distance(a.detach(), b.detach(), p=0.0) == 0).to(a.dtype)

    def cost(self, width: int) -> int:
        return 1


@dataclass(frozen=True)
class PairForm(EnergyForm):
    """e_ij = function(a_i, b_j): any function whose entry (i, j) depends on a_i and b_j alone."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        e = self.function(a, b)
        if e.shape[-2:] != (a.shape[-2], b.shape[-2]):
            raise ValueError(
                f"energy gave shape {list(e.shape)}; expected [..., {a.shape[-2]}, {b.shape[-2]}] "
                f"for queries {list(a.shape)} and keys {list(b.shape)}"
            )
        return e


def distance(a: Tensor, b: Tensor, p: float = 2.0) -> Float[Tensor, "*batch q k"]:
    # cdist never builds [..., q, k, d]. Its matrix-product mode is not used: |a|² + |b|² − 2ab cancels badly for
    # near neighbours, which matter most here. cdist has no half precision on CPU.
    return torch.cdist(wide(a), wide(b), p=p, compute_mode="donot_use_mm_for_euclid_dist")


def wide(x: Tensor) -> Tensor:
    """float32 at least: squares and quotients overflow half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
