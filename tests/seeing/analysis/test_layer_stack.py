"""Layers of several stacks or forward passes are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard import watch
from regard.seeing.analysis import Patterns, flow, head_distances, rollout
from tests.support.attention_model import AttentionModel, random_text


def test_forward_passes_and_stacks_are_not_mixed() -> None:
    text, model = random_text(10), AttentionModel()
    with torch.no_grad(), watch(model) as twice:
        model(text.ids[None])
        model(text.ids[None] * 0)
    both = nn.ModuleDict({"encoder": AttentionModel(), "decoder": AttentionModel()})
    with torch.no_grad(), watch(both) as mixed:
        both["encoder"](text.ids[None])
        both["decoder"](text.ids[None])
    for seen, word in ((twice, "several forward passes"), (mixed, "encoder.layer, decoder.layer")):
        for ask in (rollout, head_distances, lambda seen: Patterns().add(seen, text), lambda seen: flow(seen, 0)):
            with pytest.raises(ValueError, match=word):
                ask(seen)
