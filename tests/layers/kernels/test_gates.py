"""The gates of the GRU and the LSTM, on a CPU and in Triton, follow the formula."""

from __future__ import annotations

import pytest
import torch

from regard.layers.kernels import gates
from regard.layers.kernels.gates import gru, lstm
from tests.support.gradients import grads, leaf
from tests.support.triton_interpreter import interpreted, skip_without_triton


def test_gates_have_the_right_gradients() -> None:
    torch.autograd.gradcheck(gru, (leaf(2, 9), leaf(2, 9), leaf(2, 3)))
    torch.autograd.gradcheck(lstm, (leaf(2, 12), leaf(2, 3)))


def test_a_kernel_does_not_run_inside_a_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would drop the tangents of forward mode, and read the memory of what torch.vmap wraps."""
    monkeypatch.setattr(gates, "has_triton", lambda x: True)
    inputs, recurrent, h, tangent = (torch.randn(4, n, dtype=torch.float64) for n in (9, 9, 3, 3))
    with torch.no_grad():
        _, got = torch.func.jvp(lambda x: gru(inputs, recurrent, x), (h,), (tangent,))
        each = torch.vmap(gru)(inputs, recurrent, h)
    z = torch.sigmoid(inputs + recurrent)[:, 3:6]
    torch.testing.assert_close(got, z * tangent)  # only z ⊙ h depends on h here
    monkeypatch.undo()
    torch.testing.assert_close(each, gru(inputs, recurrent, h))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_gates_follow_the_formula(dtype: torch.dtype) -> None:
    skip_without_triton()
    with interpreted():
        from regard.layers.kernels import gates_triton

        torch.manual_seed(1)
        given, recalled, h, g = (torch.randn(5, n).to(dtype) for n in (21, 21, 7, 7))
        new, saved = gates_triton.gru_forward(given, recalled, h)
        inputs = [x.double().requires_grad_() for x in (given, recalled, h)]
        want = gru(*inputs)
        rounding = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(new.double(), want, rtol=rounding, atol=rounding)
        for mine, other in zip(gates_triton.gru_backward(g, *saved), grads((want * g).sum(), *inputs), strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)

        total, c, gc = (torch.randn(5, n).to(dtype) for n in (28, 7, 7))
        hidden, after, saved = gates_triton.lstm_forward(total, c)
        inputs = [x.double().requires_grad_() for x in (total, c)]
        want_h, want_c = lstm(*inputs)
        torch.testing.assert_close(hidden.double(), want_h, rtol=rounding, atol=rounding)
        torch.testing.assert_close(after.double(), want_c, rtol=rounding, atol=rounding)
        wanted = grads((want_h * g).sum() + (want_c * gc).sum(), *inputs)
        for mine, other in zip(gates_triton.lstm_backward(g, gc, *saved), wanted, strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)
