"""Dropout: its share, its mean, its seed."""

from __future__ import annotations

import math

import pytest
import torch

from regard.layers import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(3)
    x = torch.ones(1_000_003, requires_grad=True)
    y = Dropout(p)(x)
    share = (y == 0).double().mean().item()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / len(x))  # five standard deviations
    assert y.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    # Neighbours come from the same 64 random bits: they must not know of one another.
    kept = (y[:1_000_000] != 0).double().view(-1, 4)
    correlation = torch.corrcoef(kept.T)
    assert (correlation - torch.eye(4)).abs().max() < 5 / math.sqrt(250_000)


def test_dropout_is_nothing_in_evaluation_and_repeats_with_its_seed() -> None:
    layer, x = Dropout(0.3), torch.randn(50)
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()


def test_dropout_under_torch_func() -> None:
    drop = Dropout(0.5).train()
    gradient = torch.func.grad(lambda x: drop(x).sum())(torch.ones(1000))
    assert set(gradient.unique().tolist()) == {0.0, 2.0}
