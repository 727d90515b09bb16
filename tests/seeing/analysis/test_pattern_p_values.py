"""The randomization test: small p for a head built for a pattern, large p for uniform attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend, causal, watch
from regard.seeing.analysis import THRESHOLDS, Patterns
from tests.support.attention_model import random_text


class Previous(nn.Module):
    """Head 0 looks at the token before, head 1 at nothing in particular."""

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[-1]
        q = torch.zeros(1, 2, n, n)
        q[0, 0, torch.arange(1, n), torch.arange(n - 1)] = 200.0
        k = torch.eye(n).expand(1, 2, n, n)
        return attend(q, k, torch.randn(1, 2, n, 4), mask=causal())


def test_a_head_built_to_look_back_is_significant_and_chance_is_not() -> None:
    text, model = random_text(80), Previous()
    with watch(model) as seen:
        model(text.ids[None])
    patterns = Patterns()
    patterns.add(seen, text)
    back, idle = patterns.heads()
    assert back.scores["previous"] > 0.9
    assert back.labels[:1] == ["positional"] or "previous" in back.labels
    assert back.p["previous"] == pytest.approx(0.01)  # the least that 99 draws can say
    assert idle.p["previous"] > 0.05
    assert "previous" not in idle.labels
    assert set(THRESHOLDS) >= set(back.labels)


class Even(nn.Module):
    """Every key a query may see gets the same weight, behind a mask in one of its forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[-1]
        x, below = torch.zeros(1, 2, n, 4), torch.ones(n, n).tril().bool()
        numbers = torch.zeros(n, n, dtype=torch.bfloat16).masked_fill(~below, torch.finfo(torch.bfloat16).min).float()
        if self.form == "written":
            return numbers.expand(1, 2, n, n).softmax(-1) @ torch.randn(1, 2, n, 4)
        mask = {"causal": None, "dense": below, "numbers": numbers}[self.form]
        return F.scaled_dot_product_attention(x, x, torch.randn(1, 2, n, 4), mask, is_causal=mask is None)


def test_chance_draws_among_the_keys_a_query_sees_whatever_form_the_mask_has() -> None:
    text = random_text(80)
    for form in ("causal", "dense", "numbers", "written"):
        model, patterns = Even(form), Patterns()
        with watch(model) as seen:
            model(text.ids[None])
        patterns.add(seen, text)
        for head in patterns.heads():
            assert head.p["previous"] == head.p["identical"] == 1.0, form
