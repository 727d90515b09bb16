"""Tests do not depend on those before them in the same process."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import regard as r
from tests.support.process_state import reset_process_state


def _call_with_tensors_in_functions() -> None:
    """FlexAttention compiled for a bias and a mask, which are tensors that its functions hold."""
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    energy = r.Modified(r.ScaledDot(), r.Bias(torch.randn(6, 6)))
    r.attend(q, k, v, energy=energy, mask=torch.ones(6, 6, dtype=torch.bool).tril(), backend="flex")


def _call_with_one_tensor() -> None:
    x = torch.randn(1, 2, 6, 4)
    out = flex_attention(x, x, x)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, r.attend(x, x, x))


def test_what_was_compiled_is_forgotten() -> None:
    _call_with_tensors_in_functions()
    reset_process_state()
    _call_with_one_tensor()


@pytest.mark.parametrize("_", ["first", "second"])
def test_any_test_may_come_first(_: str) -> None:
    _call_with_one_tensor()
    _call_with_tensors_in_functions()


def test_settings_of_pytorch_are_reset() -> None:
    reset_process_state()
    numbers = torch.randn(3)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    reset_process_state()
    assert torch.equal(torch.randn(3), numbers)
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
