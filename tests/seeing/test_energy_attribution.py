"""The largest contributions as rows of a table."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import Contributions, attend, watch
from regard.seeing.analysis import energy_attribution, value_weighted_attention
from regard.seeing.energy_attribution import contribution_table
from tests.support.small_language_models import small_model


def test_rows_are_the_largest_contributions() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    out, w = attend(q, k, v, weights=True)
    c = Contributions(w, v, torch.randn_like(out))
    dense = c.dense()
    table = contribution_table(c, 2, queries=list("abcde"), keys=list("ABCDE")).columns
    assert len(table["entry"]) == 2 * 3 * 5 * 2
    rows = zip(*(table[x] for x in ("entry", "head", "query", "key", "contribution")), strict=True)
    for entry, head, query, key, value in rows:
        assert abs(float(dense[entry, head, query, key]) - value) < 1e-6
    assert table["key token"][0] == "ABCDE"[table["key"][0]]
    assert abs(table["contribution"][0]) == float(dense[0, 0, 0].abs().max())


def test_one_head_and_some_queries() -> None:
    q, k, v = (torch.randn(3, 5, 4) for _ in range(3))
    _, w = attend(q, k, v, weights=True)
    c = Contributions(w, v, torch.randn(3, 1, 4))
    table = contribution_table(c[1].rows([4, 2]), 9).columns
    assert list(table) == ["query", "key", "contribution"]
    assert table["query"] == [4] * 5 + [2] * 5


energy_module = importlib.import_module("regard.seeing.energy_attribution")
TEXTS = torch.randint(40, (3, 9), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("through", ["query", "key"])
@pytest.mark.parametrize(
    ("kind", "budget"),
    [("gpt2", 1e-13), ("gpt_neox", 1e-13), ("llama", 1e-6)],  # Llama's norms compute in float32 whatever the type is
)
def test_the_parts_add_up_to_the_energy(kind: str, budget: float, through: str) -> None:
    model = small_model(kind)
    with torch.no_grad(), regard.watch(model) as seen:
        model(TEXTS)
    for layer, head, query, key in ((2, 3, -1, 4), (1, 0, 6, 6), (0, 2, 5, 1)):
        parts = energy_attribution(model, TEXTS, layer=layer, head=head, query=query, key=key, through=through)
        energies = seen[layer].energies
        q, k = energies.a[:, head, query], energies.b[:, head // energies.groups, key]
        torch.testing.assert_close(parts.energy, energies.form.scale * (q * k).sum(-1), rtol=1e-6, atol=1e-9)
        assert parts.heads.shape == (3, layer, 4)
        size = parts.heads.abs().sum((1, 2)) + parts.mlps.abs().sum(1) + parts.embedding.abs() + parts.constant.abs()
        assert float(((parts.total - parts.energy).abs() / size).max()) < budget
    assert float(parts.embedding.abs().max()) > 1e-3


def test_each_head_of_a_gpt2_is_the_product_written_out() -> None:
    """s k_j · W_Q norm'(W_O o): the key is a number, the norm has its real scale."""
    model = small_model("gpt2")
    outputs: dict[int, Tensor] = {}
    handles = [
        block.attn.c_proj.register_forward_pre_hook(lambda module, args, n=n: outputs.update({n: args[0]}))
        for n, block in enumerate(model.transformer.h)
    ]
    with torch.no_grad(), regard.watch(model) as seen:
        hidden = model(TEXTS, output_hidden_states=True).hidden_states
    for handle in handles:
        handle.remove()
    parts = energy_attribution(model, TEXTS, layer=2, head=1, query=7, key=3)
    block = model.transformer.h[2]
    x = hidden[2][:, 7]
    scale = (x.var(-1, unbiased=False, keepdim=True) + block.ln_1.eps).sqrt()
    k = seen[2].energies.b[:, 1, 3]
    with torch.no_grad():
        for n, h in ((0, 0), (1, 3)):
            columns = slice(4 * h, 4 * h + 4)
            added = outputs[n][:, 7, columns] @ model.transformer.h[n].attn.c_proj.weight[columns]
            normed = block.ln_1.weight * (added - added.mean(-1, keepdim=True)) / scale
            q = normed @ block.attn.c_attn.weight[:, 4:8]  # the columns of queries of head 1
            torch.testing.assert_close(parts.heads[:, n, h], (q * k).sum(-1) / 2)


def test_sources_add_up_to_their_head_and_mistakes_are_named() -> None:
    model = small_model("llama")
    parts = energy_attribution(model, TEXTS, layer=2, head=3, query=-1, key=4, through="key")
    assert parts.rows == [4, 4, 4]
    for layer in range(2):
        sources = parts.sources(layer, 1)
        torch.testing.assert_close(sources.total()[:, 0], parts.heads[1, layer], rtol=1e-5, atol=1e-7)
    assert float(parts.sources(1, 0).dense()[:, 0, 5:].abs().max()) == 0  # nothing from after position 4
    assert len(parts.strongest(2)) == 2
    for wrong, words in (
        ({"layer": 9}, "no layer 9"),
        ({"head": 4}, "has 4 heads"),
        ({"query": 9}, "query is one of 9"),
        ({"through": "value"}, "expected"),
    ):
        with pytest.raises(ValueError, match=words):
            energy_attribution(model, TEXTS, **{"layer": 1, "head": 0, "query": 0, "key": 0, **wrong})


@pytest.mark.parametrize(("dtype", "budget"), [(torch.bfloat16, 5e-2), (torch.float16, 1e-2), (torch.float32, 1e-5)])
def test_a_llama_in_half_precision_is_explained_or_rounding_is_named(dtype: torch.dtype, budget: float) -> None:
    model = small_model("llama", dtype)
    explained = refused = 0
    for head, query, key in ((0, 8, 3), (1, 5, 2), (2, 7, 7), (3, 8, 1)):
        for through in ("query", "key"):
            try:
                parts = energy_attribution(model, TEXTS[:1], layer=2, head=head, query=query, key=key, through=through)
            except ValueError as error:
                assert "model.float()" in str(error)  # noqa: PT017 (an energy near zero may be refused, with this advice)
                refused += 1
                continue
            explained += 1
            assert float(parts.error) <= budget
            torch.testing.assert_close(parts.error, (parts.total - parts.energy).abs() / parts.size)
    assert explained >= 7
    assert refused == 0 or dtype != torch.float32


def test_parts_that_miss_the_energy_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, through_norm = small_model("gpt2"), energy_module.through_norm

    def wrong(*args: Any) -> tuple[Tensor, Tensor]:
        direction, constant = through_norm(*args)
        return 1.01 * direction, constant

    monkeypatch.setattr(energy_module, "through_norm", wrong)
    with pytest.raises(ValueError, match="the parts add up to"):
        energy_attribution(model, TEXTS, layer=2, head=1, query=7, key=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_that_are_normalized_are_refused(dtype: torch.dtype) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.Qwen3Config(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        intermediate_size=24,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).to(dtype).eval()
    with pytest.raises(ValueError, match="not linear in the normed stream"):
        energy_attribution(model, TEXTS, layer=1, head=0, query=5, key=2)


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
