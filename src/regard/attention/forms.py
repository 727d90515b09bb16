"""Forms: the three ways two projected vectors become one energy.

An energy is a projection of each side followed by one of these, and kernels differ only by form, so a kernel
written for a form serves every energy that has it: `Dot`, `ScaledDot`, `Cosine` and `General` all end in a dot
product, `Additive` and `Concat` in a tanh.
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


Form = DotForm | TanhForm | PairForm
