"""ablate: what is silenced is silent, what is closed is unseen, and afterwards everything is as it was."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.analysis import Site, ablate, effects, intervene
from regard.seeing.generation_passes import CLOSED
from regard.seeing.interventions import Ablation
from tests.support.small_language_models import CLEAN, logit_metric, small_model


class Two(nn.Module):
    """Two layers of two heads, whose outputs side by side are what the model gives."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.layer = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.attention(n, x) for n in range(2)])

    def attention(self, n: int, x: Tensor) -> Tensor:
        q, k, v = self.layer[n](x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)


def test_a_silent_head_gives_zeros_and_the_others_what_they_gave() -> None:
    model, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0), torch.randn(2, 5, 16)
    before = model.self_attn(x, x, x, need_weights=False)[0]
    with ablate(model, heads={"self_attn": [1, 3]}):
        after = model.self_attn(x, x, x, need_weights=False)[0]
    with watch(model) as seen:
        again = model.self_attn(x, x, x, need_weights=False)[0]
    assert torch.equal(before, again)
    z = seen[0].weights.tile(slice(None), slice(None)) @ seen[0].v
    z[:, [1, 3]] = 0
    expected = model.self_attn.out_proj(z.transpose(1, 2).flatten(2))
    assert torch.allclose(after, expected, atol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_closed_tokens_get_no_weight(is_causal: bool) -> None:
    model, x = Two(is_causal), torch.randn(1, 5, 8)
    with torch.no_grad(), ablate(model, tokens=[0, 2]), watch(model) as seen:
        model(x)
    w = seen[0].weights.tile(slice(None), slice(None))[0, 0]
    rows = slice(1, None) if is_causal else slice(None)  # the first query of a causal model has no other key
    assert float(w[rows, [0, 2]].max()) == 0
    assert torch.allclose(w.sum(-1), torch.ones(5))
    assert seen.faithful


@pytest.mark.parametrize("tokens", [[1], [0]])
def test_a_hugging_face_model_under_sdpa_and_eager(tokens: list[int]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=20,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(30, (1, 6))
    result = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            before = model(ids).logits
            with ablate(model, heads={1: [0, 2]}, tokens=tokens):
                result[implementation] = model(ids).logits
            assert torch.equal(before, model(ids).logits)
        assert float((before - result[implementation]).abs().max()) > 1e-4
    assert torch.allclose(result["sdpa"], result["eager"], atol=1e-5)


def test_a_query_whose_every_key_is_closed_is_left_as_it_was_by_a_mask_of_numbers() -> None:
    ablation = Ablation(Two(), {}, [0])
    q, least = torch.randn(1, 1, 3, 4), torch.finfo(torch.float32).min
    for closed in (least, -torch.inf, -1e9, -1e4):
        mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), closed)
        result, _ = ablation.mask("Two", mask, False, q, q)
        assert result is not None
        assert torch.equal(result[0], mask[0])
        assert torch.equal(result > CLOSED, torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 1]]).bool())


def test_tokens_are_keys_of_self_attention() -> None:
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    x, memory = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    with torch.no_grad(), ablate(model, tokens=[1]), watch(model) as seen:
        model(x, memory)
    own, cross = (call.weights.tile(slice(None), slice(None)) for call in seen)
    assert float(own[..., 1].max()) == 0
    assert float(cross[..., 1].min()) > 0


def test_threads_ablate_for_themselves_and_leave_the_fast_path_as_it_was() -> None:
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), torch.randn(1, 5, 8)
    before, inside, left = layer(x), threading.Event(), threading.Event()
    assert torch.backends.mha.get_fastpath_enabled()

    def other() -> None:
        with ablate(layer, tokens=[1]):
            inside.set()
            left.wait(10)
            layer(x)

    thread = threading.Thread(target=other)
    with ablate(layer, heads={"self_attn": [0]}):
        thread.start()
        inside.wait(10)
        mine = layer(x)
    assert torch.equal(before, layer(x))  # the other's tokens are not closed here
    left.set()
    thread.join()
    assert torch.backends.mha.get_fastpath_enabled()
    with ablate(layer, heads={"self_attn": [0]}):
        assert torch.equal(mine, layer(x))


def test_what_cannot_be_ablated_is_reported() -> None:
    model = Two()
    with pytest.raises(ValueError, match="counted from 0; got -1, -2"), ablate(model, heads={0: [-1]}, tokens=[-2]):
        pass
    with pytest.raises(ValueError, match="nothing to ablate"), ablate(model):
        pass
    with pytest.raises(ValueError, match="nothing was ablated"), ablate(model, heads={"nowhere": [0]}):
        model(torch.randn(1, 5, 8))
    with (
        pytest.raises(ValueError, match="in nowhere, layer 7, token 5:"),
        ablate(model, heads={"Two": [0], "nowhere": [0], 7: [1]}, tokens=[4, 5]),
    ):
        model(torch.randn(1, 5, 8))
    with (
        pytest.raises(ValueError, match="4 heads"),
        ablate(layer := nn.MultiheadAttention(8, 4), heads={"MultiheadAttention": [9]}),
    ):
        layer(*[torch.randn(3, 1, 8)] * 3, need_weights=False)
    with pytest.raises(ValueError, match="need_weights=False"), ablate(layer, tokens=[0]):
        layer(*[torch.randn(3, 1, 8)] * 3)
    assert F.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"
    assert not hasattr(F.scaled_dot_product_attention, "__wrapped__")


class WrittenOut(nn.Module):
    """Attention by a softmax and a product, in one of the ways that models write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.num_heads = way, 4

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (4, -1))  # [B, T, heads, D]
        if self.way == "einsum":
            w = torch.einsum("bihd,bjhd->bhij", q, q).softmax(dim=-1)
            return torch.einsum("bhij,bjhd->bihd", w, q).flatten(2)
        q = q.transpose(1, 2)
        if self.way == "merged":  # the batch and the heads are one axis, as in Bloom
            q = q.flatten(0, 1)
            z = torch.bmm((q @ q.mT).softmax(dim=-1), q).unflatten(0, (-1, 4))
        elif self.way == "no heads":
            return (x @ x.mT).softmax(dim=-1) @ x
        else:
            z = (q @ q.mT).softmax(dim=-1) @ q
        return z.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["matmul", "einsum", "merged"])
def test_heads_of_attention_written_out_are_silenced(way: str) -> None:
    model, x = nn.Sequential(WrittenOut(way), WrittenOut(way)), torch.randn(2, 5, 8, requires_grad=True)
    first = model[0](x)
    with ablate(model, heads={0: [1, 3]}), watch(model) as seen:
        out = model[0](x)
        model[1](x)
    silenced = first.clone()
    silenced[..., 2:4] = silenced[..., 6:8] = 0
    torch.testing.assert_close(out, silenced)
    out.sum().backward()
    assert x.grad is not None
    assert [call.ablated for call in seen] == ["heads 1, 3", ""]
    assert seen.faithful
    with ablate(model, heads={1: [2]}):  # without a watch
        assert not model[1](x)[..., 4:6].any()
        assert model[1](x)[..., :4].all()
    torch.testing.assert_close(model[0](x), first)
    from regard.seeing.watch import local

    assert not local.state.softmaxes


def test_what_attention_written_out_cannot_lose_is_refused_by_name() -> None:
    x = torch.randn(2, 5, 8)
    model = nn.Sequential(WrittenOut("matmul"))
    with pytest.raises(ValueError, match="0 is attention written out in a module, where tokens"):  # noqa: SIM117
        with ablate(model, tokens=[1]):
            model(x)
    with pytest.raises(ValueError, match="0 has 4 heads; head 7"), ablate(model, heads={"0": [7]}):
        model(x)
    model = nn.Sequential(WrittenOut("no heads"))
    model[0].num_heads = 1
    with pytest.raises(ValueError, match="0 writes its attention out, and its product with values has no axis"):  # noqa: SIM117
        with ablate(model, heads={"0": [0]}):
            model(x)


def test_what_flows_is_changed_by_a_function_or_to_a_tensor_also_while_generating() -> None:
    model, direction = small_model("llama"), torch.randn(16, dtype=torch.float64)
    site = Site(1, part="stream", token=-1)

    def by_hand(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0].clone()
        x[:, -1] += 9 * direction
        return (x, *args[1:])

    handle = model.model.layers[1].register_forward_pre_hook(by_hand)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(CLEAN, **options)
    handle.remove()
    with intervene(model, {site: lambda x: x + 9 * direction}), watch(model) as seen:
        steered = model.generate(CLEAN, **options)
    assert torch.equal(steered, expected)
    assert not torch.equal(steered, model.generate(CLEAN, **options))
    assert len(seen) == 3
    with torch.no_grad():
        plain = model(CLEAN).logits
        with ablate(model, heads={1: [2]}):
            without = model(CLEAN).logits
        with intervene(model, {Site(1, 2): 0.0}), watch(model) as seen:
            assert torch.equal(model(CLEAN).logits, without)
        assert "without change of 1.2" in repr(seen)
        saved: list[Tensor] = []
        with intervene(model, {"model.layers.1.mlp": lambda x: saved.append(x) or x}):
            assert torch.equal(model(CLEAN).logits, plain)
        with intervene(model, {Site(1, part="mlp"): saved[0]}):  # what flowed there anyway
            assert torch.equal(model(CLEAN).logits, plain)
        with intervene(model, {Site(1, part="mlp"): 0.0}):
            mlp = model(CLEAN).logits
        result = effects(model, CLEAN, lambda output: output.logits[:, -1, 3], of="mlps")
        torch.testing.assert_close(mlp[:, -1, 3], result.values[1], rtol=1e-6, atol=1e-7)
        with intervene(model, {Site(token=2): 0.0}):
            embedded = model(CLEAN).logits
        assert not torch.equal(embedded, plain)
        assert torch.equal(model(CLEAN).logits, plain)  # nothing is left behind


def test_effects_inside_an_intervention_are_those_of_the_changed_model() -> None:
    model = small_model("gpt2")
    with ablate(model, heads={0: [1]}):
        expected = effects(model, CLEAN, logit_metric)
    with intervene(model, {Site(0, 1): 0.0}):
        result = effects(model, CLEAN, logit_metric)
    torch.testing.assert_close(result.values, expected.values)


def test_what_cannot_be_changed_is_said() -> None:
    model = small_model("gpt2")
    wrong: list[tuple[Site | str, Any, str]] = [
        (Site(0, 7), 0.0, "layer 0 has 4 heads; there is no head 7"),
        (Site(8), 0.0, "nothing was changed at layer 8"),
        ("transformer.g", 0.0, r"no module 'transformer.g'; those of the first level are transformer, lm_head"),
        (Site(1, part="mlp"), lambda x: x[..., 0], r"change at mlp 1 gives \[3, 7\]; expected \[3, 7, 16\]"),
        (Site(1, 2, 3, key=1), 0.0, "see ablate"),
    ]
    for site, change, message in wrong:
        with torch.no_grad(), pytest.raises(ValueError, match=message), intervene(model, {site: change}):
            model(CLEAN)
    for heads in ({3: 5}, [(3, 5)]):
        with pytest.raises(ValueError, match="for each layer a list"), ablate(model, heads=heads):  # type: ignore[arg-type]
            pass
    with torch.no_grad(), pytest.raises(ValueError, match="has 4 heads; edge"), ablate(model, edges=[(0, 4, 1, 0)]):
        model(CLEAN)


def test_edges_are_closed_while_a_text_is_generated() -> None:
    """With a cache each step has one query; the query of an edge is a position of the text."""
    model = small_model("llama")
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    edges = [(layer, head, 8, key) for layer in range(3) for head in range(4) for key in range(8)]
    with ablate(model, edges=edges), watch(model) as seen:
        model.generate(CLEAN, **options)
    for call in seen:
        w = call.weights.dense()
        assert w.shape[-2:] == (9, 9)
        assert float(w[..., 8, :8].abs().max()) == 0.0
        assert float(w[..., 7, :8].min()) > 0.0
