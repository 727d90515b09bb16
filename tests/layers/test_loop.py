"""Steps of a loop: deferred gradients equal those of every step, and gates on CPU and in Triton follow the formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard import Additive
from regard.attention.energies import TanhForm
from regard.layers import EncoderMemory
from regard.layers.kernels import loop
from regard.layers.kernels.loop import DeferredLinear, LoopAdditive, gru, lstm
from tests.support.gradients import F64, grads, leaf
from tests.support.triton_interpreter import interpreted, skip_without_triton


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
    for product, q, learned in (
        (DeferredLinear(m), x, (m,)),
        (LoopAdditive(keys, w), x.repeat(1, 2)[:, None, :4], (keys, w)),
    ):
        y = product(q).square().sum()
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


def test_gates_have_the_right_gradients() -> None:
    torch.autograd.gradcheck(gru, (leaf(2, 9), leaf(2, 9), leaf(2, 3)))
    torch.autograd.gradcheck(lstm, (leaf(2, 12), leaf(2, 3)))


def test_a_kernel_does_not_run_inside_a_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would drop the tangents of forward mode, and read the memory of what torch.vmap wraps."""
    monkeypatch.setattr(loop, "has_triton", lambda x: True)
    inputs, recurrent, h, tangent = (torch.randn(4, n, dtype=torch.float64) for n in (9, 9, 3, 3))
    with torch.no_grad():
        _, got = torch.func.jvp(lambda x: gru(inputs, recurrent, x), (h,), (tangent,))
        each = torch.vmap(gru)(inputs, recurrent, h)
    z = torch.sigmoid(inputs + recurrent)[:, 3:6]
    torch.testing.assert_close(got, z * tangent)  # only z ⊙ h depends on h here
    monkeypatch.undo()
    torch.testing.assert_close(each, gru(inputs, recurrent, h))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_gates_and_scores_follow_the_formula(dtype: torch.dtype) -> None:
    skip_without_triton()
    with interpreted():
        from regard.layers.kernels import loop_triton

        torch.manual_seed(1)
        given, recalled, h, g = (torch.randn(5, n).to(dtype) for n in (21, 21, 7, 7))
        new, saved = loop_triton.gru_forward(given, recalled, h)
        inputs = [x.double().requires_grad_() for x in (given, recalled, h)]
        want = gru(*inputs)
        rounding = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(new.double(), want, rtol=rounding, atol=rounding)
        for mine, other in zip(loop_triton.gru_backward(g, *saved), grads((want * g).sum(), *inputs), strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)

        total, c, gc = (torch.randn(5, n).to(dtype) for n in (28, 7, 7))
        hidden, after, saved = loop_triton.lstm_forward(total, c)
        inputs = [x.double().requires_grad_() for x in (total, c)]
        want_h, want_c = lstm(*inputs)
        torch.testing.assert_close(hidden.double(), want_h, rtol=rounding, atol=rounding)
        torch.testing.assert_close(after.double(), want_c, rtol=rounding, atol=rounding)
        wanted = grads((want_h * g).sum() + (want_c * gc).sum(), *inputs)
        for mine, other in zip(loop_triton.lstm_backward(g, gc, *saved), wanted, strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)

        q, keys, w, ge = (torch.randn(*shape).to(dtype) for shape in ((3, 20), (3, 19, 20), (20,), (3, 19)))
        e = loop_triton.energies(q, keys, w)
        q64, k64, w64 = (x.double().requires_grad_() for x in (q, keys, w))
        want = torch.tanh(q64[:, None] + k64) @ w64
        torch.testing.assert_close(e.double(), want, rtol=1e-5, atol=1e-5)
        sums, sum_w = torch.zeros(3, 19, 20), torch.zeros(3, 20)
        to_q = loop_triton.add_gradients(ge, q, keys, w, sums, sum_w)
        # A second step adds to the same sums.
        to_q = loop_triton.add_gradients(ge, q, keys, w, sums, sum_w)
        wanted = grads((want * ge).sum(), q64, k64, w64)
        torch.testing.assert_close(to_q.double(), wanted[0], rtol=8 * rounding, atol=8 * rounding)
        torch.testing.assert_close((sums * w).double(), 2 * wanted[1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(sum_w.sum(0).double(), 2 * wanted[2], rtol=1e-4, atol=1e-4)
