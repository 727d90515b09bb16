"""Dropout that does not spend a Transformer's training time on random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ..attention.torch_transforms import transformed

if TYPE_CHECKING:
    from jaxtyping import Float, Int16
    from torch import Tensor

_STEPS = 1 << 16
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


def _mask(shape: torch.Size, chance: int) -> Int16[Tensor, "..."]:
    """All bits set with probability 1 − chance/65,536, else none; from 16 random bits each.

    On a CPU PyTorch draws its random bits one number after the other, 64 for each decision of `nn.Dropout`, which shows
    in the training of a small Transformer. Sixteen bits decide as well, and come four to a draw. Comparing in place
    keeps the dtype; a mask of booleans would be converted by every product.
    """
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    return bits.view(torch.int16)[:count].ge_(chance - _STEPS // 2).neg_().view(shape)


def _drop(x: Float[Tensor, "*shape"], mask: Int16[Tensor, "*shape"], scale: float) -> Float[Tensor, "*shape"]:
    integer = _INTEGERS[x.element_size()]
    return (x.view(integer) & mask.to(integer)).view(x.dtype).mul_(scale)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, chance: int) -> Tensor:
        mask = _mask(x.shape, chance)
        ctx.save_for_backward(mask)
        ctx.scale = _STEPS / (_STEPS - chance)
        return _drop(x, mask, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return _drop(g, mask, ctx.scale), None


class Dropout(nn.Dropout):
    """Each number is zero with probability p while training, and what is left is scaled by 1/(1 − p).

    (Srivastava et al. 2014.) On a CPU p is rounded to a multiple of 1/65,536.
    """

    padded_children: ClassVar[tuple[str, ...]] = ()

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training:
            return x
        chance = round(self.p * _STEPS)
        if x.device.type != "cpu" or not 0 < chance < _STEPS or transformed():
            return super().forward(x)
        y: Tensor = _Drop.apply(x, chance)
        return y
