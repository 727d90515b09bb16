"""Soft and hard attention over an encoder memory (Show, Attend and Tell)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import nn

from ...attention import Hard
from ...attention.listeners import listeners

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from .encoder_memory import EncoderMemory


class SoftHardOutput(NamedTuple):
    """Context and weights; of a sampled place also its log-probability and the entropy of the distribution."""

    context: Float[Tensor, "batch queries width"]
    weights: Float[Tensor, "batch queries places"]
    log_prob: Float[Tensor, "batch queries"] | None = None
    entropy: Float[Tensor, "batch queries"] | None = None


class SoftHardAttention(nn.Module):
    """z = Σ_i w_i a_i with α = softmax(e) (Xu et al. 2015, section 4):

    - soft: w = α (section 4.2);
    - hard: w is 1 at one place s. In training s ~ α, and log α_s and H(α) are returned for REINFORCE (section 4.1);
      in evaluation s = argmax α. Rows that are `expected` use w = α instead of a sample.
    """

    def __init__(self, kind: Literal["soft", "hard"]) -> None:
        super().__init__()
        self.hard = Hard("reinforce") if kind == "hard" else None

    def forward(
        self, memory: EncoderMemory, q: Float[Tensor, "batch queries d"], expected: Bool[Tensor, "batch"] | None = None
    ) -> SoftHardOutput:
        if self.hard is None:
            return SoftHardOutput(*memory.attend(q))
        e = memory.energies(q)
        e = e.to(torch.promote_types(e.dtype, torch.float32))
        weights, picked = self.hard.both(e)
        if not self.training:
            z = memory.mix(weights)
            if listeners:
                memory.notify(q, z, normalize=self.hard, state=picked)
            return SoftHardOutput(z, weights)
        log_alpha = torch.log_softmax(e, dim=-1)
        alpha = log_alpha.exp()
        entropy = -(alpha * log_alpha.masked_fill(alpha == 0, 0)).sum(-1)  # 0 · log 0 = 0
        if expected is not None:
            weights = torch.where(expected[:, None, None], alpha, weights)
        # Not reported: rows with averages and rows with samples have no common normalizer.
        return SoftHardOutput(memory.mix(weights), weights, log_alpha.gather(-1, picked[..., None])[..., 0], entropy)
