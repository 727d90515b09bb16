"""Sampling: the next token is drawn instead of searched for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """y_t ~ softmax(logits / temperature), over the likeliest tokens alone where asked.

    `top_k` keeps that many of them (Fan et al. 2018); `top_p` the fewest whose probabilities reach p together
    (Holtzman et al. 2020, nucleus sampling). 0 and 1.0 keep all. With a `seed` the same batch gives the same draw.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"a temperature is a finite number > 0, got {self.temperature}; the likeliest need no Sample"
            )
        if self.top_k < 0:
            raise ValueError(f"top_k keeps that many tokens, or all when 0; got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is a probability, 0 < p ≤ 1; got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ValueError(f"a seed is a whole number from 0 to 2⁶³ − 1, got {self.seed}")

    def generator(self, device: torch.device) -> torch.Generator | None:
        return None if self.seed is None else torch.Generator(device).manual_seed(self.seed)

    def draw(self, logprobs: Float[Tensor, "... vocabulary"], generator: torch.Generator | None) -> Int[Tensor, "..."]:
        scores = logprobs / self.temperature
        if self.top_k:
            kth = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1:]
            scores = scores.masked_fill(scores < kth, -torch.inf)
        if self.top_p < 1:
            best, order = scores.softmax(-1).sort(-1, descending=True)
            # A token stays if those before it do not reach p yet: the first always does.
            beyond = best.cumsum(-1) - best >= self.top_p
            scores = scores.masked_fill(torch.empty_like(beyond).scatter(-1, order, beyond), -torch.inf)
        # The Gumbel-max trick: s_j − log(E_j), E_j ~ Exp(1), is largest with probability softmax(s)_j.
        return (scores - torch.empty_like(scores).exponential_(generator=generator).log()).argmax(-1)
