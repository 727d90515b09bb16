"""tanh by way of the sigmoid: within one rounding of numbers between 1 and 2, in place, and exact at the ends."""

from __future__ import annotations

import pytest
import torch

from regard.layers.fast_tanh import tanh_


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2**-22), (torch.float64, 2**-51)])
def test_it_is_tanh(dtype: torch.dtype, most: float) -> None:
    x = torch.cat([torch.linspace(-20, 20, 10_001, dtype=dtype), torch.tensor([-1e30, 1e30], dtype=dtype)])
    y = x.clone()
    assert tanh_(y) is y
    assert float((y - x.double().tanh()).abs().max()) <= most
    assert y[-2:].tolist() == [-1, 1]


def test_half_precision_keeps_the_digits_of_small_numbers() -> None:
    x = torch.tensor([1e-3, -2e-4], dtype=torch.bfloat16)
    assert torch.equal(tanh_(x.clone()), x.tanh())


def test_it_has_a_gradient() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    tanh_(2 * x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * (1 - (2 * x.detach()).tanh().square()))
