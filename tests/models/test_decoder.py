"""The cross-entropy of a vocabulary, beside PyTorch's: its error against float64 is at most twice PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regard.models.decoder import cross_entropy


def _inputs(scale: float, offset: float, dtype: torch.dtype, rows: int = 40) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(int(scale + offset))
    f = torch.randn(rows, 8, generator=generator)
    f[:, 0] = 1
    w = scale * torch.randn(50, 8, generator=generator)
    w[:, 0] += offset
    y = torch.randint(0, 50, (rows,), generator=generator)
    y[::3] = (f @ w.mT)[::3].argmax(1)  # some losses are near zero
    return f.to(dtype), w.to(dtype), y


def _expected(
    f: torch.Tensor, w: torch.Tensor, y: torch.Tensor, real: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, ...]:
    """The loss, its part without smoothing, and the gradients of f and w, by PyTorch."""
    f, w = f.detach().requires_grad_(), w.detach().requires_grad_()
    logits = (f @ w.mT)[real]
    total = functional.cross_entropy(logits, y[real], label_smoothing=smoothing, reduction="sum")
    total.backward()
    return total.detach(), functional.cross_entropy(logits.detach(), y[real], reduction="sum"), f.grad, w.grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("scale", "offset"), [(1, 0), (10, 0), (1, 300), (30, 1000), (0.001, -500)])
def test_errors_are_at_most_twice_those_of_pytorch(scale: float, offset: float, smoothing: float) -> None:
    f, w, y = _inputs(scale, offset, torch.float32)
    real = torch.arange(len(y)) % 5 > 0
    truth = _expected(f.double(), w.double(), y, real, smoothing)
    theirs = _expected(f, w, y, real, smoothing)
    f, w = f.requires_grad_(), w.requires_grad_()
    loss = cross_entropy(f, w, y, real, smoothing)
    loss.total.backward()
    assert int(loss.tokens) == int(real.sum())
    for ours, other, right in zip((loss.total, loss.nll, f.grad, w.grad), theirs, truth, strict=True):
        rounding = 8 * torch.finfo(torch.float32).eps * float(right.abs().max() + abs(offset) * smoothing)
        assert float((ours.detach() - right).abs().max()) <= 2 * float((other - right).abs().max()) + rounding


@pytest.mark.parametrize(("largest", "gap"), [(50.0, 12.0), (1000.0, 10.0), (200.0, 11.0)])
def test_losses_far_smaller_than_the_logits(largest: float, gap: float) -> None:
    w, f = torch.tensor([[largest], [largest - gap], [largest - gap - 3]]), torch.ones(1, 1)
    y, real = torch.tensor([0]), torch.tensor([True])
    truth = functional.cross_entropy((f @ w.mT).double(), y)
    error = abs(functional.cross_entropy(f @ w.mT, y) - truth)
    ours = cross_entropy(f, w, y, real).nll
    assert ours >= 0
    assert abs(ours - truth) <= 2 * error + torch.finfo(torch.float32).eps


def test_float16_where_columns_of_the_matrix_add_up_to_more_than_it_holds() -> None:
    f = torch.randn(2, 4, dtype=torch.float16, requires_grad=True)
    w = torch.full((40_000, 4), 2.0, dtype=torch.float16, requires_grad=True)
    for smoothing in (0.0, 0.1):
        f.grad = w.grad = None
        loss = cross_entropy(f, w, torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool), smoothing)
        loss.total.backward()
        assert all(torch.isfinite(x).all() for x in (loss.total, f.grad, w.grad))


def test_no_target_at_all() -> None:
    f, w = torch.randn(2, 3, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    loss = cross_entropy(f, w, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.bool), 0.1)
    loss.total.backward()
    assert (float(loss.total), int(loss.tokens)) == (0, 0)
    assert not f.grad.any()
    assert not w.grad.any()
