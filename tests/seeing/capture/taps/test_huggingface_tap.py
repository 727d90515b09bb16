"""Eager attention of Hugging Face, called several times: after the first call its formula is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.capture.taps import huggingface_tap

HEADS, D = 4, 8


@pytest.mark.parametrize("length", [5, 64, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_each_forward_of_one_module_is_shown_as_it_was(dtype: torch.dtype, length: int) -> None:
    kept: list[Tensor] = []

    def function(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **options: Any) -> Any:
        scores = q @ k.mT * options["scaling"] + mask
        w = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        kept.append(w)
        return (w @ v).transpose(1, 2).contiguous(), w

    module, g = nn.Module(), torch.Generator().manual_seed(0)
    mask = torch.zeros(1, 1, length, length, dtype=dtype)
    mask.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu(1), torch.finfo(dtype).min)
    with torch.no_grad(), watch(nn.ModuleList([module])) as seen:
        for _ in range(3):
            q, k, v = torch.randn(3, 1, HEADS, length, D, generator=g).to(dtype)
            huggingface_tap._attention(function, "eager", module, q, k, v, mask, scaling=0.3)
    assert seen.missed == []
    assert seen.faithful is True
    assert len(seen) == len(kept) == 3
    for call, theirs in zip(seen, kept, strict=True):
        assert call.shape == (1, HEADS, length, length)
        atol = 1e-6 if dtype == torch.float32 else 4e-3  # half a step of bfloat16
        torch.testing.assert_close(call.weights.dense(), theirs.float(), rtol=0, atol=atol)
