"""A small attention model and a random text, for tests of `regard.seeing.analysis`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import watch
from regard.seeing.analysis import TokenizedText

WIDTH, HEADS = 16, 2


class AttentionLayer(nn.Module):
    """Self-attention with heads of random projections."""

    def __init__(self, sharp: float, is_causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.sharp, self.is_causal = sharp, is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q * self.sharp, k, v, is_causal=self.is_causal)
        return x + out.transpose(1, 2).flatten(2)


class AttentionModel(nn.Module):
    def __init__(self, layers: int = 2, is_causal: bool = False, sharp: float = 3.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.layer = nn.ModuleList(AttentionLayer(sharp, is_causal) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        # A small position embedding, so that equal tokens get different weights.
        x = self.embedding(ids) + 0.1 * torch.randn(ids.shape[-1], WIDTH, generator=torch.Generator().manual_seed(1))
        for layer in self.layer:
            x = layer(x)
        return x


def watched(ids: Tensor, **options: object) -> regard.Seen:
    model = AttentionModel(**options)  # type: ignore[arg-type]
    with torch.no_grad(), watch(model) as seen:
        model(ids[None])
    return seen


def random_text(length: int, pair: bool = False) -> TokenizedText:
    ids = torch.randint(20, (length,), generator=torch.Generator().manual_seed(3))
    plain = TokenizedText.from_ids(ids)
    delimiters, punctuation = ids == 7, ids == 8
    segments = torch.where(torch.arange(length) < length // 2, 0, 1) if pair else None
    table = torch.randn(20, 3, generator=torch.Generator().manual_seed(4))
    return TokenizedText(ids, plain.tokens, delimiters, punctuation, segments, vectors=table[ids] if pair else None)
