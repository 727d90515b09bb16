"""Pairs of equal tokens: computed block by block and pair by pair, the sums are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard.seeing.analysis import equal_tokens
from tests.support.attention_model import HEADS, random_text, watched

if TYPE_CHECKING:
    import pytest


def test_pairs_looked_up_one_by_one_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(equal_tokens, "CHUNK", 200)
    text = random_text(50, pair=True)
    for is_causal in (False, True):
        (call, _) = watched(text.ids, is_causal=is_causal)
        one, other = (equal_tokens.PairSums(equal_tokens.TokenPairs(text), HEADS) for _ in range(2))
        call.weights[0].stats(also=[one])
        other.add_pairwise(call.weights[0])
        for kind in equal_tokens.KINDS:
            assert float(one.total[kind].sum()) > 0
            assert torch.allclose(one.total[kind], other.total[kind], atol=1e-5), kind
