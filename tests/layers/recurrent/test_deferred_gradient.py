"""Deferred gradients of loops equal those of every step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard import Additive
from regard.attention.energies.energy_forms import TanhForm
from regard.layers import EncoderMemory
from regard.layers.recurrent.deferred_gradient import DeferredLinear
from regard.layers.recurrent.loop_additive import LoopAdditive
from tests.support.gradients import F64, grads, leaf


def test_fixed_gives_the_gradient_of_every_step_at_once() -> None:
    m, b, x = leaf(4, 3), leaf(4), leaf(2, 3)

    def run(product: object) -> torch.Tensor:
        y, total = x, torch.zeros((), dtype=F64)
        for t in range(3):
            y = torch.tanh(product(y))[:, :3]  # type: ignore[operator]
            total = total + (y * (t + 1)).sum()
        return total

    for got, want in zip(
        grads(run(DeferredLinear(m, b)), m, b, x),
        grads(run(lambda y: nn.functional.linear(y, m, b)), m, b, x),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def test_fixed_can_go_back_twice_and_skips_what_did_not_matter() -> None:
    m, x = leaf(4, 3), leaf(2, 3)
    fixed = DeferredLinear(m)
    y = fixed(x).sum()
    fixed(x)  # a step that leads nowhere
    torch.testing.assert_close(
        torch.autograd.grad(y, m, retain_graph=True)[0], torch.autograd.grad(y, m)[0], rtol=0, atol=0
    )


def test_asking_for_an_inputs_gradient_leaves_the_matrix_alone() -> None:
    """As saliency and gradient penalties do: the steps' notes are for the matrix, and it was not asked for."""
    m, x, keys, w = leaf(4, 3), leaf(2, 3), leaf(2, 5, 4), leaf(4)
    for loop, q, learned in (
        (DeferredLinear(m), x, (m,)),
        (LoopAdditive(keys, w), x.repeat(1, 2)[:, None, :4], (keys, w)),
    ):
        y = loop(q).square().sum()
        want = torch.autograd.grad(y, learned, retain_graph=True)
        torch.autograd.grad(y, x, retain_graph=True)
        for got, other in zip(torch.autograd.grad(y, learned), want, strict=True):
            torch.testing.assert_close(got, other, rtol=0, atol=0)


def test_steps_can_be_trained_through_after_sentences_leave() -> None:
    keys, w, q = leaf(3, 5, 4), leaf(4), leaf(2, 2, 4)
    rows, values, p = torch.tensor([2, 0]), leaf(3, 5, 2), leaf(2, 2, 5)
    memory = EncoderMemory(keys, TanhForm(w), values, torch.tensor([5, 5, 5])).select(rows)
    got = memory.energies(q)  # two queries of each sentence, as of two beams
    want = torch.tanh(q[:, :, None] + keys[rows][:, None]) @ w
    for mine, other in zip(grads(got.sum(), q, keys, w), grads(want.sum(), q, keys, w), strict=True):
        torch.testing.assert_close(mine, other)
    for mine, other in zip(
        grads(memory.mix(p).sum(), values, p), grads((p @ values[rows]).sum(), values, p), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_what_a_broken_backward_pass_noted_does_not_count() -> None:
    energy = Additive(4, 4, 4).double()
    fixed, memory = (
        DeferredLinear(energy.query.weight),
        EncoderMemory.project(energy, leaf(2, 3, 4), torch.tensor([3, 2])),
    )
    breaks = True

    def stop(gradient: torch.Tensor) -> None:
        if breaks:
            raise RuntimeError("stop")

    state = first = leaf(2, 4)
    first.register_hook(stop)
    for _ in range(3):
        state = torch.tanh(state + memory.attend(fixed(state)[:, None])[0][:, 0])
    with pytest.raises(RuntimeError, match="stop"):
        state.sum().backward(retain_graph=True)
    breaks = False
    energy.zero_grad()
    state.sum().backward(retain_graph=True)
    first_grads = [parameter.grad.clone() for parameter in energy.parameters() if parameter.grad is not None]
    energy.zero_grad()
    state.sum().backward()
    again = [parameter.grad for parameter in energy.parameters() if parameter.grad is not None]
    assert len(first_grads) == len(again) == 3
    for a, b in zip(first_grads, again, strict=True):
        torch.testing.assert_close(a, b)
