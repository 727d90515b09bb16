"""watch(gradients=True): w_ij · ∂L/∂w_ij from one backward of the model as it is, against autograd of eager weights."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import watch
from regard.seeing.storage import TensorStorage


def _loss(x: Tensor) -> Tensor:
    return (x * torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)).tanh().sum()


class Layer(nn.Module):
    """Attention with 4 query heads over `kv` key heads, by a function of (q, k, v)."""

    def __init__(self, attention: Any, kv: int = 2) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 4 * heads) for heads in (4, kv, kv))
        self.o = nn.Linear(16, 8)
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(self.attention(q, k, v).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, attention: Any, kv: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(attention, kv) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


SEEN = torch.rand(7, 7, generator=torch.Generator().manual_seed(1)).tril() > 0.2
SEEN[:, 0] = True
BIAS = torch.randn(4, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
SINK = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
CAPPED, SINKS = regard.Modified(regard.ScaledDot(), regard.SoftCap(1.5)), regard.Softmax(sink=SINK)

# What the model calls, and the same energies written out, with the weights after them.
CASES: dict[str, tuple[Any, Any]] = {
    "sdpa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        lambda e: e.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1),
    ),
    "sdpa with a mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=SEEN, enable_gqa=True),
        lambda e: e.masked_fill(~SEEN, -torch.inf).softmax(-1),
    ),
    "sdpa with a bias": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=BIAS, enable_gqa=True),
        lambda e: (e + BIAS).softmax(-1),
    ),
    "attend with a sink and a soft cap": (
        lambda q, k, v: regard.attend(q, k, v, energy=CAPPED, normalize=SINKS, mask=regard.causal()),
        lambda e: (
            torch.cat([_capped(e), SINK[:, None, None].expand(2, 4, 7, 1)], -1).softmax(-1)[..., :-1]
        ),
    ),
}  # fmt: skip


def _capped(e: Tensor) -> Tensor:
    return (1.5 * (e / 1.5).tanh()).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_attention_times_gradient_is_that_of_eager_weights(case: str, frozen: bool) -> None:
    function, weigh = CASES[case]
    torch.manual_seed(0)
    model, x = Stack(function).double(), torch.randn(2, 7, 8, dtype=torch.float64)
    weights: list[Tensor] = []

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        weights.append(weigh(q @ k.mT / 2))
        return weights[-1] @ v

    written = Stack(eager).double()
    written.load_state_dict(model.state_dict())
    gradients = torch.autograd.grad(_loss(written(x)), weights)
    model.requires_grad_(not frozen)
    with watch(model, gradients=True) as seen:
        loss = _loss(model(x))
    loss.backward()
    assert len(seen) == 2
    assert seen.faithful
    for call, w, gradient in zip(seen, weights, gradients, strict=True):
        c = call.contributions()
        torch.testing.assert_close(c.dense(), w.detach() * gradient)
        rows, out = call.outputs()
        assert float(c.rows(rows.tolist()).fidelity(out).max()) < 1e-10


def test_a_module_that_writes_attention_out() -> None:
    weights: list[Tensor] = []

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights.append((q @ k.mT / 2).softmax(-1))
        return torch.einsum("bhqk,bhkd->bhqd", weights[-1], v)

    torch.manual_seed(0)
    model = Stack(eager, kv=4).double()
    with watch(model, gradients=True) as seen:
        loss = _loss(model(torch.randn(2, 5, 8, dtype=torch.float64)))
    gradients = torch.autograd.grad(loss, weights)
    for call, w, gradient in zip(seen, weights, gradients, strict=True):
        torch.testing.assert_close(call.contributions().dense(), w.detach() * gradient)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention(need_weights: bool) -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(8, 2, batch_first=True).double(), torch.randn(3, 5, 8, dtype=torch.float64)
    with watch(module, gradients=True) as seen:
        loss = _loss(module(x, x, x, need_weights=need_weights)[0])
    loss.backward()
    q, k, v = (
        t.unflatten(-1, (2, 4)).transpose(1, 2).detach()
        for t in F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    w = (q @ k.mT / 2).softmax(-1).requires_grad_()
    (gradient,) = torch.autograd.grad(_loss(module.out_proj((w @ v).transpose(1, 2).flatten(2))), w)
    torch.testing.assert_close(seen[0].contributions().dense(), w.detach() * gradient)


def test_the_graph_of_attention_that_is_written_out_is_freed() -> None:
    outputs: list[weakref.ref[Tensor]] = []

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = (q @ k.mT / 2).softmax(-1) @ v
        outputs.append(weakref.ref(out))
        return out

    model = Stack(eager, kv=4)
    with watch(model, gradients=True) as seen:
        loss = _loss(model(torch.randn(2, 5, 8)))
    loss.backward()
    assert seen[1].gradient.shape == (2, 4, 5, 4)
    del loss
    gc.collect()
    assert [reference() for reference in outputs] == [None, None]


def test_multi_head_attention_under_autocast() -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    with watch(module, gradients=True) as whole:
        loss = _loss(module(x, x, x)[0])
    loss.backward()
    with torch.autocast("cpu", torch.bfloat16), watch(module, gradients=True) as seen:
        loss = _loss(module(x, x, x)[0].float())
    loss.backward()
    torch.testing.assert_close(seen[0].gradient.float(), whole[0].gradient, rtol=0.05, atol=0.02)
    torch.testing.assert_close(
        seen[0].contributions().dense().float(), whole[0].contributions().dense(), rtol=0.1, atol=0.02
    )


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("sdpa")])
def test_a_frozen_model_may_change_the_output_in_place(case: str) -> None:
    """The gradient is that of the output before the change."""
    torch.manual_seed(0)
    outputs: list[Tensor] = []

    def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = CASES[case][0](q, k, v)
        out *= 2
        return out

    def out_of_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs.append(CASES[case][0](q, k, v))
        return outputs[-1] * 2

    model, other, x = Layer(in_place).double(), Layer(out_of_place).double(), torch.randn(2, 7, 8).double()
    other.load_state_dict(model.state_dict())
    gradients = torch.autograd.grad(_loss(other(x)), outputs)
    model.requires_grad_(False)
    with watch(model, gradients=True) as seen:
        loss = _loss(model(x))
    loss.backward()
    torch.testing.assert_close(loss, _loss(other(x)))
    for call, gradient in zip(seen, gradients, strict=True):
        torch.testing.assert_close(call.gradient, gradient)


def test_a_gradient_that_cannot_be_kept_does_not_stop_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(self: TensorStorage, x: Tensor) -> Tensor:
        raise OSError("no space left")

    monkeypatch.setattr(TensorStorage, "store", store)
    model = Stack(CASES["sdpa"][0]).double()
    with watch(model, limit="1GB", gradients=True) as seen:
        model(torch.randn(2, 7, 8, dtype=torch.float64)).sum().backward()
    with pytest.raises(ValueError, match=r"layers\.0 has no gradient: it could not be kept: no space left"):
        _ = seen[0].gradient


CONFIGS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {}),
    "gemma 2, soft caps and windows": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {"num_key_value_heads": 2, "head_dim": 4, "sliding_window": 4, "attn_logit_softcapping": 2.0},
    ),
    "gpt-oss, sinks": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {"num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


@pytest.mark.parametrize(
    ("case", "implementation"), [*((case, "eager") for case in CONFIGS), ("llama", "sdpa"), ("gpt2", "sdpa")]
)
def test_hugging_face_models_against_autograd_through_their_eager_weights(case: str, implementation: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    model_class, config_class, own = CONFIGS[case]
    options = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, config_class)(**options, intermediate_size=20, **own)
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(config).double().eval()
    if "GptOss" in model_class:
        model.set_experts_implementation("eager")  # the grouped product takes no float64
    ids = torch.randint(30, (2, 7))
    padding = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7])
    inputs = {"input_ids": ids, "attention_mask": padding}
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    gradients = torch.autograd.grad(_loss(output.logits[:, 4]), output.attentions)
    model.set_attn_implementation(implementation)
    with watch(model, gradients=True) as seen:
        loss = _loss(model(**inputs).logits[:, 4])
    loss.backward()
    assert len(seen) == 2
    for call, w, gradient in zip(seen, output.attentions, gradients, strict=True):
        # Transformers computes softmax and root mean squares in float32 whatever the type of the model is.
        torch.testing.assert_close(call.contributions().dense(), w.detach() * gradient, rtol=1e-5, atol=1e-7)
        assert float(gradient.abs().max()) > 1e-4


def test_the_last_backward_pass_counts() -> None:
    torch.manual_seed(0)
    model, x = Stack(CASES["sdpa"][0]).double(), torch.randn(2, 7, 8, dtype=torch.float64)
    with watch(model, gradients=True) as seen:
        out = model(x)
    out.sum().backward(retain_graph=True)
    first, kept = seen[0].gradient, seen[0].contributions()
    (3 * out.sum()).backward()
    torch.testing.assert_close(seen[0].gradient, 3 * first)
    torch.testing.assert_close(seen[0].contributions().total(), 3 * kept.total())


def test_gradients_are_kept_as_copies_where_asked() -> None:
    model, x = Stack(CASES["sdpa"][0]).double(), torch.randn(2, 7, 8, dtype=torch.float64)
    with watch(model, gradients=True, keep="cpu") as seen:
        out = model(x)
    out.sum().backward()
    assert seen[1].gradient.shape == (2, 4, 7, 4)
    assert seen[1].contributions().shape == (2, 4, 7, 7)


def test_what_has_no_gradient_says_why() -> None:
    model, x = Stack(CASES["sdpa"][0]).double(), torch.randn(2, 7, 8, dtype=torch.float64)
    with watch(model) as seen:
        model(x)
    with pytest.raises(ValueError, match="gradients=True"):
        _ = seen[0].gradient
    with watch(model, gradients=True) as seen:
        model(x)
    with pytest.raises(ValueError, match="no backward pass reached it"):
        seen[0].contributions()
    with torch.no_grad(), watch(model, gradients=True) as seen:
        model(x)
    with pytest.raises(ValueError, match="without a graph"):
        _ = seen[0].gradient
