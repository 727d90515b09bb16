"""Models, inputs and settings whose effects cannot be measured are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

import regard
from regard.seeing.analysis import ablate, effects
from tests.support.small_language_models import CLEAN, logit_metric, small_model

if TYPE_CHECKING:
    from collections.abc import Callable


class CallsAttention(nn.Module):
    """Two heads through a function of attention; `heads=0` for calls without an axis of heads."""

    def __init__(self, attention: Callable[..., Tensor], heads: int = 2) -> None:
        super().__init__()
        self.attention, self.heads = attention, heads

    def forward(self, x: Tensor) -> Tensor:
        if not self.heads:
            return self.attention(x, x, x)
        q = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.attention(q, q, q).transpose(1, 2).flatten(2)


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = flex.flex_attention(q, k, v)
    assert isinstance(out, Tensor)
    return out


def _noted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = (q @ k.mT / 2).exp()  # no softmax that another tap would see
    out = w @ v / w.sum(-1, keepdim=True)
    regard.note(q, k, v, out)
    return out


@pytest.mark.parametrize("attention", [regard.attend, _flex, _noted])
def test_tokens_are_refused_where_no_mask_can_be_changed(attention: Callable[..., Tensor]) -> None:
    model, x = nn.Sequential(CallsAttention(_sdpa), CallsAttention(attention)), torch.randn(3, 5, 8)
    with pytest.raises(ValueError, match=r"1 is a call of .*, where tokens cannot be masked"):
        effects(model, x, lambda out: out.sum((1, 2)), of="tokens")
    with pytest.raises(ValueError, match="where tokens cannot be masked"), ablate(model, tokens=[1]):
        model(x)


def test_an_output_that_is_only_noted_cannot_be_changed() -> None:
    model, x = nn.Sequential(CallsAttention(_noted), CallsAttention(_noted)), torch.randn(3, 5, 8)
    with pytest.raises(ValueError, match="called no attention that could be changed"), regard.watch(model):
        effects(model, x, lambda out: out.sum((1, 2)))
    with pytest.raises(ValueError, match="nothing was ablated in 1"), regard.watch(model) as seen:  # noqa: SIM117
        with ablate(model, heads={"1": [0, 1]}):
            model(x)
    assert [call.ablated for call in seen] == ["", ""]


@pytest.mark.parametrize("attention", [regard.attend, _sdpa])
def test_a_batch_is_not_taken_for_heads(attention: Callable[..., Tensor]) -> None:
    model, x = nn.Sequential(CallsAttention(attention, heads=0)), torch.randn(3, 5, 8)
    for of in ("heads", "layers"):
        with pytest.raises(ValueError, match=r"0 calls attention with an output of shape \[3, 5, 8\]"):
            effects(model, x, lambda out: out.sum((1, 2)), of=of)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x.unsqueeze\(1\)"), ablate(model, heads={"0": [0]}):
        model(x)


def test_a_model_that_drops_out_in_a_function_is_refused() -> None:
    class DropsOut(CallsAttention):
        def forward(self, x: Tensor) -> Tensor:
            q = x.unflatten(-1, (2, -1)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5 if self.training else 0.0)

    model, x = nn.Sequential(DropsOut(_sdpa)), torch.randn(3, 5, 8)
    for rows in (32, 3):  # with the batch repeated, and not
        with pytest.raises(ValueError, match=r"same output again .* \(call model.eval\(\)"):
            effects(model.train(), x, lambda out: out.sum((1, 2, 3)), rows=rows)
    assert effects(model.eval(), x, lambda out: out.sum((1, 2, 3))).values.isfinite().all()


def test_an_input_without_a_batch_that_has_its_size_is_refused() -> None:
    class Weighted(CallsAttention):
        def forward(self, x: Tensor, scales: Tensor) -> Tensor:
            return super().forward(x) * scales.cumsum(0)[-1]  # scales [3], the same for all entries

    model, x = Weighted(_sdpa), torch.randn(3, 5, 8)
    with pytest.raises(ValueError, match="no batch dimension but the size of the batch, 3"):
        effects(model, {"x": x, "scales": torch.ones(3)}, lambda out: out.sum((1, 2)))
    values = effects(model, {"x": x, "scales": torch.ones(4)}, lambda out: out.sum((1, 2))).values
    torch.testing.assert_close(values.sum(0), 4 * model(x, torch.ones(1)).sum((1, 2)).double(), atol=1e-5, rtol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    model, inputs = small_model("gpt2"), {"input_ids": CLEAN}
    with pytest.raises(ValueError, match="expected one of 'heads'"):
        effects(model, inputs, logit_metric, of="neurons")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs corrupted"):
        effects(model, inputs, logit_metric, by="patch")
    with pytest.raises(ValueError, match="one number for each of 3 entries"):
        effects(model, inputs, lambda output: output.logits.sum())
    with pytest.raises(ValueError, match="must have one shape"):
        effects(model, inputs, logit_metric, by="patch", corrupted={"input_ids": CLEAN[:, :5]})
    with pytest.raises(ValueError, match="no estimate from a gradient"):
        effects(model, inputs, logit_metric, of="tokens", exact=3)
    with pytest.raises(ValueError, match="give two at least"):
        effects(model, {"input_ids": CLEAN[:1]}, logit_metric, by="resample")
    with pytest.raises(ValueError, match=r"training mode .* call model.eval\(\)"):
        effects(small_model("gpt2").train(), inputs, logit_metric)
    with pytest.raises(ValueError, match="called no attention"):
        effects(nn.Linear(2, 2), torch.zeros(3, 2), lambda out: out.sum(1))
