"""|w_ij| · ‖v_j W_O‖ against the sum written out, for a BERT, a GPT-2 and grouped heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import watch
from regard.seeing.analysis import value_weighted_attention
from tests.support.small_language_models import small_model

IDS = torch.randint(40, (2, 6), generator=torch.Generator().manual_seed(2))


def _bert() -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20
    )
    torch.manual_seed(0)
    return transformers.BertModel(config).double().eval()


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_each_value_by_the_size_of_what_it_writes(kind: str) -> None:
    model = _bert() if kind == "bert" else small_model(kind)
    if kind == "bert":
        projection, matrix = (dense := model.encoder.layer[1].attention.output.dense), dense.weight.T
    elif kind == "gpt2":
        projection, matrix = (dense := model.transformer.h[1].attn.c_proj), dense.weight
    else:
        projection, matrix = (dense := model.model.layers[1].self_attn.o_proj), dense.weight.T
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
    call = seen[1]
    v = call.v.repeat_interleave(4 // call.v.shape[1], dim=1)
    written = torch.einsum("bhkd,hde->bhke", v, matrix.detach().unflatten(0, (4, 4)))
    expected = call.weights.dense() * written.norm(dim=-1)[:, :, None]
    torch.testing.assert_close(value_weighted_attention(call, projection).dense(), expected)
