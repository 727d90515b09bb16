"""Circuits from weights, against full d × d matrices of the parameters written out; GPT-2, GPT-NeoX and Llama."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.seeing.analysis import circuits, energy_attribution
from tests.support.small_language_models import CLEAN, small_model

NEAR: dict[str, Any] = {
    "gpt2": {"rtol": 1e-9, "atol": 1e-10},
    "gpt_neox": {"rtol": 1e-5, "atol": 1e-6},  # rotary positions and norms of float32
    "llama": {"rtol": 1e-5, "atol": 1e-6},
}


def _rotation(module: nn.Module, position: int, size: int) -> Tensor:
    """The matrix that turns a query at this position, as Hugging Face pairs dimension i with i + n / 2."""
    cos, sin = module(torch.zeros(1, 1, 16, dtype=torch.float64), torch.tensor([[position]]))
    cos, sin, n = cos[0, 0].double(), sin[0, 0].double(), cos.shape[-1]
    half = torch.zeros(n, n, dtype=torch.float64)
    half[torch.arange(n // 2), torch.arange(n // 2) + n // 2] = -1
    half[torch.arange(n // 2) + n // 2, torch.arange(n // 2)] = 1
    matrix = torch.eye(size, dtype=torch.float64)
    matrix[:n, :n] = torch.diag(cos) + sin[:, None] * half
    return matrix


def _by_hand(kind: str, model: Any, distance: int) -> tuple[Tensor, Tensor, Tensor]:
    """W_QK and W_OV of all heads, [layers, heads, d, d], and the unembedding, from the parameters."""
    base = model.base_model
    qk, ov = [], []
    for block in base.h if kind == "gpt2" else base.layers:
        if kind == "gpt2":
            gain, centre = block.ln_1.weight, True
            q, k, v = (x.T.reshape(4, 4, 16) for x in block.attn.c_attn.weight.split(16, dim=1))
            o, turn = block.attn.c_proj.weight.T, torch.eye(4, dtype=torch.float64)
        elif kind == "gpt_neox":
            gain, centre = block.input_layernorm.weight, True
            q, k, v = block.attention.query_key_value.weight.reshape(4, 3, 4, 16).unbind(1)
            o, turn = block.attention.dense.weight, _rotation(base.rotary_emb, distance, 4)
        else:
            gain, centre = block.input_layernorm.weight, False
            a = block.self_attn
            q, k, v = (x.weight.reshape(-1, 4, 16) for x in (a.q_proj, a.k_proj, a.v_proj))
            k, v = (x.repeat_interleave(2, dim=0) for x in (k, v))
            o, turn = a.o_proj.weight, _rotation(base.rotary_emb, distance, 4)
        q, k, v = (x * gain for x in (q, k, v))
        if centre:
            q, k, v = (x - x.mean(-1, keepdim=True) for x in (q, k, v))
        o = o.reshape(16, 4, 4).permute(1, 0, 2)  # [heads, d, d_head]
        qk.append((turn @ q).mT @ k)
        ov.append(o @ v)
    norm = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm", "llama": "norm"}[kind]
    u = model.get_output_embeddings().weight * getattr(base, norm).weight
    return torch.stack(qk), torch.stack(ov), u if kind == "llama" else u - u.mean(-1, keepdim=True)


@pytest.mark.parametrize("distance", [0, 3])
@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "llama"])
@torch.no_grad()
def test_eigenvalues_and_composition_against_full_matrices(kind: str, distance: int) -> None:
    model = small_model(kind)
    found = circuits(model, distance=distance)
    qk, ov, u = _by_hand(kind, model, distance)
    assert found.rotary is (kind != "gpt2")

    def ratio(x: Tensor) -> Tensor:
        values = torch.linalg.eigvals(x)
        return values.real.sum(-1) / values.abs().sum(-1)

    torch.testing.assert_close(found.copying(), ratio(ov), **NEAR[kind])
    largest = torch.linalg.eigvals(qk).abs().sort(descending=True).values[..., :4]
    torch.testing.assert_close(found.qk_eigenvalues().abs().sort(descending=True).values, largest, **NEAR[kind])
    embedding = model.get_input_embeddings().weight
    torch.testing.assert_close(found.copying(vocabulary=True), ratio(u @ ov @ embedding.T), **NEAR[kind])
    pairs = {"query": lambda n, h: qk[n, h].T, "key": lambda n, h: qk[n, h], "value": lambda n, h: ov[n, h]}
    every = found.composition()
    for number, (through, reader) in enumerate(pairs.items()):
        scores = found.composition(through)
        torch.testing.assert_close(scores, every[number], equal_nan=True)
        for n in range(3):
            assert bool(scores[n, :, n:].isnan().all())
            for h in range(4):
                a = reader(n, h)
                expected = (a @ ov[:n]).flatten(2).norm(dim=-1) / (a.norm() * ov[:n].flatten(2).norm(dim=-1))
                torch.testing.assert_close(scores[n, h, :n], expected, **NEAR[kind])
    (sender, receiver, score), *_ = found.strongest("key", 1)
    assert score == float(found.composition("key").nan_to_num(0).max())
    assert float(found.composition("key")[(*receiver, *sender)]) == score


@torch.no_grad()
def test_a_token_and_what_a_head_writes_and_seeks_for_it() -> None:
    model = small_model("gpt2")
    found = circuits(model)
    qk, ov, u = _by_hand("gpt2", model, 0)
    e = model.get_input_embeddings().weight
    e = (e - e.mean(-1, keepdim=True)) / (e - e.mean(-1, keepdim=True)).square().mean(-1, keepdim=True).sqrt()
    written, sought = found.written(1, 2, 7, count=3), found.sought(1, 2, 7, count=3)
    values, tokens = (u @ ov[1, 2] @ e[7]).topk(3)
    assert written.tokens.tolist() == tokens.tolist()
    torch.testing.assert_close(written.probabilities, values)
    values, tokens = (e[7] @ qk[1, 2] @ e.T).topk(3)
    assert sought.tokens.tolist() == tokens.tolist()
    torch.testing.assert_close(sought.probabilities, values)


def test_a_random_model_composes_by_chance() -> None:
    """Random matrices of d = 16: the root mean square over pairs is near 1 / √d."""
    model = small_model("gpt2", layers=6)
    found = circuits(model)
    scores = found.composition("value")
    square = float(scores[~scores.isnan()].square().mean().sqrt())
    assert square == pytest.approx(found.chance, rel=0.1)
    assert repr(found).startswith("Circuits of 6 layers of 4 heads; norms folded")
    assert list(found.table().columns) == ["layer", "head", "copying", "copying of tokens", "matching"]


def test_the_weights_beside_the_text() -> None:
    model = small_model("llama")
    parts = energy_attribution(model, CLEAN, layer=2, head=1, query=5, key=3, through="key")
    table = circuits(model, distance=2).beside(parts, 2, 1, "key")
    assert list(table.columns) == ["layer", "head", "the weights say", "on this text"]
    assert table.columns["layer"] == [0] * 4 + [1] * 4
    assert table.columns["on this text"] == parts.heads.mean(0).flatten().tolist()
    with pytest.raises(ValueError, match="are not those of layer 1"):
        circuits(model).beside(parts, 1, 1, "key")
    with pytest.raises(ValueError, match="through is 'keys'"):
        circuits(model).composition("keys")  # type: ignore[arg-type]


def test_normed_queries_are_no_matrix() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 4}
    config = transformers.Qwen3Config(**sizes, num_key_value_heads=2, intermediate_size=24)
    with pytest.raises(ValueError, match="its queries are not linear in the normed stream"):
        circuits(transformers.Qwen3ForCausalLM(config).eval())
