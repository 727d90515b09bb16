"""Eager attention of Hugging Face, called several times: after the first call its formula is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing import taps
from regard.seeing.watch import capture_calls

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
            taps._attention(function, "eager", module, q, k, v, mask, scaling=0.3)
    assert seen.missed == []
    assert seen.faithful is True
    assert len(seen) == len(kept) == 3
    for call, theirs in zip(seen, kept, strict=True):
        assert call.shape == (1, HEADS, length, length)
        atol = 1e-6 if dtype == torch.float32 else 4e-3  # half a step of bfloat16
        torch.testing.assert_close(call.weights.dense(), theirs.float(), rtol=0, atol=atol)


IDS = torch.tensor([[3, 4, 5, 6, 7]])


class OwnCode(nn.Module):
    """A model whose attention modules are known, followed by a module that calls the kernel itself."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        self.text = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
            )
        )
        self.head = OwnHead()
        self.eval()
        with torch.no_grad(), watch(self):
            self(IDS)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.text(ids, use_cache=False).logits[:, None]
        return self.head(x)


class OwnHead(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def _replace_forward(monkeypatch: pytest.MonkeyPatch, model: OwnCode, way: str) -> None:
    """The attention modules ask for their function, and then compute a softmax: instead of calling it, or before."""
    interface = pytest.importorskip("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS

    def forward(self: Any, hidden_states: Tensor, **_: Any) -> Any:
        function = interface.get_interface(self.config._attn_implementation, None)
        q, k, v = (p(hidden_states).unflatten(-1, (2, 8)).transpose(1, 2) for p in self.projections())
        w = (q @ k.mT * self.scaling).softmax(-1)
        out = (w @ v).transpose(1, 2) if way == "instead" else function(self, q, k, v, None, scaling=self.scaling)[0]
        return self.o_proj(out.flatten(-2)), None

    kind = type(model.text.model.layers[0].self_attn)
    monkeypatch.setattr(kind, "projections", lambda self: (self.q_proj, self.k_proj, self.v_proj), raising=False)
    monkeypatch.setattr(kind, "forward", forward)


def test_a_known_module_that_computes_a_softmax_instead_does_not_name_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = OwnCode()
    _replace_forward(monkeypatch, model, "instead")
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
    assert [call.name for call in seen] == ["text.model.layers.0.self_attn", "head"]
    assert seen.faithful


@pytest.mark.parametrize("grad", [False, True])
def test_a_known_module_that_computes_a_softmax_before_does_not_fail(
    grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OwnCode()
    _replace_forward(monkeypatch, model, "before")
    with torch.set_grad_enabled(grad):
        expected = model(IDS)
        with watch(model) as seen:
            assert torch.equal(model(IDS), expected)
    assert {call.name for call in seen if call.origin.startswith("sdpa")} == {"text.model.layers.0.self_attn", "head"}


def test_calls_that_are_captured_reach_no_watch() -> None:
    model = OwnCode()
    with torch.no_grad(), watch(model) as seen:
        with capture_calls() as calls:
            model(IDS)
        assert len(calls) == 2
    assert not len(seen)


def test_an_export_is_no_call() -> None:
    model = OwnCode()
    with torch.no_grad(), watch(model) as seen:
        torch.export.export(model, (IDS,), strict=False)
    assert not len(seen)
    assert not seen.missed
