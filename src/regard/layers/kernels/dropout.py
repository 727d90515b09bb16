"""Dropout that does not spend a Transformer's training time on random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.torch_transforms import transformed

if TYPE_CHECKING:
    from jaxtyping import Float

STEPS = 1 << 16


class Dropout(nn.Dropout):
    """Each number is zero with probability p while training, and what is left is scaled by 1/(1 − p).

    (Srivastava et al. 2014.) On a CPU PyTorch draws 64 random bits for each decision, one number after the other, which
    shows in the training of a small Transformer. Here 16 bits decide, so p is rounded to a multiple of 1/65,536.
    """

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        chance = round(self.p * STEPS)
        if not self.training or x.device.type != "cpu" or not 0 < chance < STEPS or transformed():
            return super().forward(x)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
        keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= chance - STEPS // 2
        return x * keep.to(x.dtype).mul_(STEPS / (STEPS - chance))
