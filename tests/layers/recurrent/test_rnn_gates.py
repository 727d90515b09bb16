"""The gates, on CPU and in Triton, against the formula."""

from __future__ import annotations

import pytest
import torch

from regard.layers.recurrent import rnn_gates
from tests.support.gradients import grads, leaf
from tests.support.triton_interpreter import interpreted, skip_without_triton


def test_gates_have_the_right_gradients() -> None:
    torch.autograd.gradcheck(rnn_gates.gru, (leaf(2, 9), leaf(2, 9), leaf(2, 3)))
    torch.autograd.gradcheck(rnn_gates.lstm, (leaf(2, 12), leaf(2, 3)))


def test_a_kernel_does_not_run_inside_a_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would drop the tangents of forward mode, and read the memory of what torch.vmap wraps."""
    monkeypatch.setattr(rnn_gates, "_gru_forward", None)  # the function that may choose the kernel
    inputs, recurrent, h, tangent = (torch.randn(4, n, dtype=torch.float64) for n in (9, 9, 3, 3))
    with torch.no_grad():
        _, got = torch.func.jvp(lambda x: rnn_gates.gru(inputs, recurrent, x), (h,), (tangent,))
        each = torch.vmap(rnn_gates.gru)(inputs, recurrent, h)
    z = torch.sigmoid(inputs + recurrent)[:, 3:6]
    torch.testing.assert_close(got, z * tangent)  # only z ⊙ h depends on h here
    torch.testing.assert_close(each, rnn_gates._gru_formula(inputs, recurrent, h)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_gates_and_scores_follow_the_formula(dtype: torch.dtype) -> None:
    skip_without_triton()
    with interpreted():
        from regard.layers.recurrent import loop_additive_triton, rnn_gates_triton

        torch.manual_seed(1)
        given, recalled, h, g = (torch.randn(5, n).to(dtype) for n in (21, 21, 7, 7))
        new, saved = rnn_gates_triton.gru_forward(given, recalled, h)
        inputs = [x.double().requires_grad_() for x in (given, recalled, h)]
        want = rnn_gates.gru(*inputs)
        rounding = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(new.double(), want, rtol=rounding, atol=rounding)
        for mine, other in zip(rnn_gates_triton.gru_backward(g, *saved), grads((want * g).sum(), *inputs), strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)

        total, c, gc = (torch.randn(5, n).to(dtype) for n in (28, 7, 7))
        hidden, after, saved = rnn_gates_triton.lstm_forward(total, c)
        inputs = [x.double().requires_grad_() for x in (total, c)]
        want_h, want_c = rnn_gates.lstm(*inputs)
        torch.testing.assert_close(hidden.double(), want_h, rtol=rounding, atol=rounding)
        torch.testing.assert_close(after.double(), want_c, rtol=rounding, atol=rounding)
        wanted = grads((want_h * g).sum() + (want_c * gc).sum(), *inputs)
        for mine, other in zip(rnn_gates_triton.lstm_backward(g, gc, *saved), wanted, strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)

        q, keys, w, ge = (torch.randn(*shape).to(dtype) for shape in ((3, 20), (3, 19, 20), (20,), (3, 19)))
        e = loop_additive_triton.energies(q, keys, w)
        q64, k64, w64 = (x.double().requires_grad_() for x in (q, keys, w))
        want = torch.tanh(q64[:, None] + k64) @ w64
        torch.testing.assert_close(e.double(), want, rtol=1e-5, atol=1e-5)
        sums, sum_w = torch.zeros(3, 19, 20), torch.zeros(3, 20)
        to_q = loop_additive_triton.add_gradients(ge, q, keys, w, sums, sum_w)
        # A second step adds to the same sums.
        to_q = loop_additive_triton.add_gradients(ge, q, keys, w, sums, sum_w)
        wanted = grads((want * ge).sum(), q64, k64, w64)
        torch.testing.assert_close(to_q.double(), wanted[0], rtol=8 * rounding, atol=8 * rounding)
        torch.testing.assert_close((sums * w).double(), 2 * wanted[1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(sum_w.sum(0).double(), 2 * wanted[2], rtol=1e-4, atol=1e-4)
