"""Encoder memory against `attend`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard import Additive, Concat, Dot, General, attend, padding
from regard.layers import EncoderMemory, RecurrentCell
from tests.support.gradients import grads, leaf


@pytest.mark.parametrize(
    "energy", [Additive(4, 5, 6), Concat(4, 5, 6), General(4, 5), Dot()], ids=lambda e: type(e).__name__
)
def test_memory_says_what_attend_says(energy: nn.Module) -> None:
    """Three looks in a loop, one after the other, are three queries at once: outputs, weights, gradients."""
    if isinstance(energy, nn.Module):
        energy = energy.double()
    vectors, lengths = leaf(2, 7, 4 if isinstance(energy, Dot) else 5), torch.tensor([7, 3])
    q = leaf(2, 3, 4)
    learned = list(energy.parameters()) if isinstance(energy, nn.Module) else []
    memory, matrix = EncoderMemory.project(energy, vectors, lengths), getattr(energy, "query_matrix", None)  # type: ignore[arg-type]
    looks = [memory.attend(at[:, None] if matrix is None else (at @ matrix.mT)[:, None]) for at in q.unbind(1)]
    got = torch.cat([z for z, _ in looks], 1)
    want, w = attend(q, vectors, vectors, energy=energy, mask=padding(lengths), weights=True, backend="reference")
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.cat([p for _, p in looks], 1), w.dense())
    upstream = torch.randn_like(want)
    a = grads((got * upstream).sum(), q, vectors, *learned)
    b = grads((want * upstream).sum(), q, vectors, *learned)
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    "energy", [Additive(4, 4, 4), Concat(4, 4, 4), General(4, 4), Dot()], ids=lambda e: repr(e)[:4]
)
def test_loops_in_float32_run_and_learn_under_autocast(energy: nn.Module) -> None:
    vectors = torch.randn(2, 3, 4, requires_grad=True)
    q = torch.randn(2, 1, 4)
    plain = EncoderMemory.project(energy, vectors, torch.tensor([3, 2])).attend(q)[0]  # type: ignore[arg-type]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = EncoderMemory.project(energy, vectors, torch.tensor([3, 2])).attend(q)[0]  # type: ignore[arg-type]
        cell = RecurrentCell("gru", 3, 4, 4)
        unrolled = cell.unroll(torch.float32)
        hidden = (torch.zeros(2, 4),)
        hidden = unrolled.step(torch.randn(2, 12), mixed[:, 0], unrolled.recall(hidden)[0], hidden)
    torch.testing.assert_close(mixed.float(), plain, rtol=0.03, atol=0.03)
    (mixed.float().sum() + hidden[0].float().sum()).backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_loops_run_where_there_is_no_autocast() -> None:
    with torch.device("meta"):
        z, weights = EncoderMemory.project(
            Additive(4, 4, 4), torch.empty(2, 3, 4), torch.empty(2, dtype=torch.long)
        ).attend(torch.empty(2, 1, 4))
    assert (z.shape, weights.shape) == ((2, 1, 4), (2, 1, 3))


def test_a_sentence_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one place to attend to; the shortest has 0"):
        EncoderMemory.project(Dot(), torch.randn(2, 3, 4), torch.tensor([3, 0]))
