"""Weights that a module multiplies with values and sums by itself are attention, proved like a product of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from regard import watch

if TYPE_CHECKING:
    from collections.abc import Callable

B, T, D = 2, 7, 4


class Attention(nn.Module):
    """A module that calls a function, and may have other attention inside."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.inner = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, scores: Tensor, v: Tensor) -> Tensor:
        return self.function(scores, v)


def seen_of(function: Callable[..., Tensor], batch: int = B) -> Any:
    torch.manual_seed(0)
    scores, v = torch.randn(batch, T), torch.randn(batch, T, D)
    model = Attention(function)
    with torch.no_grad(), watch(model) as seen:
        out = model(scores, v)
    assert not torch._C._len_torch_function_stack(), "a mode stayed on the stack"
    torch.testing.assert_close(out, model(scores, v), rtol=0, atol=0)
    return seen, scores.softmax(-1)


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "column of weights": lambda s, v: (s[..., None].softmax(1) * v).sum(1),
    "weights last": lambda s, v: (v.mT * s.softmax(-1)[:, None]).sum(dim=-1, keepdim=True),
    "torch.sum": lambda s, v: torch.sum(torch.mul(s.softmax(-1).unsqueeze(-1), v), dim=[1]),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_weights_times_values_summed_are_attention_and_proved(way: str, batch: int) -> None:
    seen, weights = seen_of(WAYS[way], batch)
    (call,) = seen
    assert call.shape == (batch, 1, T)
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None))[:, 0], weights)
    assert seen.faithful is True
    assert seen.missed == []


def test_several_queries() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, 3, T, D) for _ in range(3))
    model = Attention(lambda q, v: ((q @ k.mT).softmax(-1)[..., None] * v[..., None, :, :]).sum(-2))
    with torch.no_grad(), watch(model) as seen:
        model(q, v)
    assert seen[0].shape == (B, 3, T, T)
    assert seen.faithful is True
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None)), (q @ k.mT).softmax(-1))


NOT_ATTENTION: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a gate": lambda s, v: s.softmax(-1)[..., None] * v,
    "a sum over another axis": lambda s, v: (s.softmax(-1)[..., None] * v).sum(-1),
    "a softmax over one entry": lambda s, v: (s[..., None].softmax(-1) * v).sum(1),
}


@pytest.mark.parametrize("way", NOT_ATTENTION)
def test_a_gate_is_named_and_not_shown(way: str) -> None:
    seen, _ = seen_of(NOT_ATTENTION[way])
    assert len(seen) == 0
    assert "is not followed by a product with values" in seen.missed[0]
    assert seen.faithful is False


def test_weights_are_masked_before_a_product_of_matrices() -> None:
    seen, weights = seen_of(lambda s, v: (s.softmax(-1) * torch.ones(T))[:, None] @ v)
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None))[:, 0], weights)
    assert seen.faithful is True


def test_attention_of_torch_behind_a_softmax_is_seen() -> None:
    model = Attention(lambda s, v: model.inner(v * s.softmax(-1)[..., None], v, v)[0])
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(B, T), torch.randn(B, T, D))
    assert [call.name for call in seen] == ["inner"]
    assert seen[0].fidelity().faithful is True
    assert not torch._C._len_torch_function_stack()
