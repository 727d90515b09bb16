"""Retrieval heads: a head built to copy from the needle scores 1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.analysis import retrieval_scores


def test_a_head_that_copies_from_the_needle_is_a_retrieval_head() -> None:
    """Prompt 0 … 9 with the needle at 4 … 6; the model writes 4, 5, 6; head 0 looks there, head 1 at the first."""

    class Generator(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k.clone(), is_causal=q.shape[-2] > 1)

    model, width = Generator(), 13
    k = torch.eye(width).expand(1, 2, width, width).clone()
    q = torch.zeros(1, 2, 12, width)
    for step in range(3):
        q[0, 0, 9 + step, 4 + step] = 90.0
        q[0, 1, 9 + step, 0] = 90.0
    with watch(model) as seen:
        model(q[:, :, :10], k[:, :, :10])
        model(q[:, :, 10:11], k[:, :, :11])
        model(q[:, :, 11:12], k[:, :, :12])
    assert seen[0].steps == [10, 1, 1]
    ids = torch.tensor([*range(10), 4, 5, 6])
    assert retrieval_scores(seen, ids, range(4, 7)).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match="in the prompt"):
        retrieval_scores(seen, ids, range(9, 12))
