"""Activations against hooks written by hand, on GPT-2, GPT-NeoX and Llama, in one pass and while generating."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import watch
from tests.support.attention_model import AttentionModel
from tests.support.small_language_models import CLEAN, small_model


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "llama"])
@torch.no_grad()
def test_the_stream_the_mlps_and_the_heads_are_what_hooks_see(kind: str) -> None:
    model = small_model(kind)
    blocks = model.transformer.h if kind == "gpt2" else model.base_model.layers
    name = {"gpt2": "attn.c_proj", "gpt_neox": "attention.dense", "llama": "self_attn.o_proj"}[kind]
    found: dict[str, list[Tensor]] = {"stream": [], "mlp": [], "heads": []}
    for block in blocks:
        block.register_forward_pre_hook(lambda _, args: found["stream"].append(args[0]))
        block.mlp.register_forward_hook(lambda _, args, output: found["mlp"].append(output))
        block.get_submodule(name).register_forward_pre_hook(lambda _, args: found["heads"].append(args[0]))
    blocks[-1].register_forward_hook(lambda _, args, output: found["stream"].append(output))
    with watch(model, activations=True) as seen:
        model(CLEAN)
    assert [len(seen.stream), len(seen.mlp), len(seen.heads)] == [4, 3, 3]
    for number, x in enumerate(found["stream"]):
        assert seen.stream[number] is x or torch.equal(seen.stream[number], x)
    for number, x in enumerate(found["mlp"]):
        assert torch.equal(seen.mlp[number], x)
        torch.testing.assert_close(seen.heads[number].transpose(1, 2).flatten(2), found["heads"][number])
    assert torch.equal(seen.stream[-1], found["stream"][-1])
    assert len(seen.mlp[1:]) == 2
    with pytest.raises(IndexError, match="mlp has 3 entries, counted from 0; there is no 3"):
        _ = seen.mlp[3]


def test_a_generation_is_one_sequence() -> None:
    model = small_model("llama")
    with watch(model, activations=True) as seen:
        ids = model.generate(CLEAN, max_new_tokens=4, do_sample=False, pad_token_id=0)
    with torch.no_grad(), watch(model, activations=True) as whole:
        model(ids[:, :-1])
    for number in range(4):
        torch.testing.assert_close(seen.stream[number], whole.stream[number], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen.mlp[2], whole.mlp[2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen.heads[2], whole.heads[2], rtol=1e-5, atol=1e-6)


def test_what_was_not_kept_or_cannot_be_is_said() -> None:
    model = small_model("gpt2")
    with torch.no_grad(), watch(model) as seen:
        model(CLEAN)
    assert seen.heads[1].shape == (3, 4, 7, 4)
    with pytest.raises(ValueError, match="stream was not kept; record with watch"):
        _ = seen.stream
    with pytest.raises(ValueError, match=r"several .decoder.layer, encoder.layer.: watch one of them"):
        watch(nn.ModuleDict({"encoder": AttentionModel(), "decoder": AttentionModel()}), activations=True)
    with torch.no_grad(), watch(nn.TransformerEncoder(_layer(), 2), activations=True) as seen:
        pass
    with pytest.raises(ValueError, match=r"layers.0 did not run while it was watched"):
        _ = seen.stream[1]

    class InPlace(AttentionModel):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embedding(ids)
            for layer in self.layer:
                x = layer(x)
                x += 1.0
            return x

    with torch.no_grad(), watch(changing := InPlace(), activations=True) as seen:
        changing(CLEAN % 20)
    with pytest.raises(ValueError, match=r"layer.0 gave was changed in place since"):
        _ = seen.stream[1]


def _layer() -> Any:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
