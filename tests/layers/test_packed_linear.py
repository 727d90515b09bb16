"""A packed matrix gives the same products, and never those of older weights."""

from __future__ import annotations

import pytest
import torch

from regard.layers import Linear, packed_linear, packed_weights
from regard.layers.packed_linear import pack


@pytest.fixture
def layer() -> Linear:
    torch.manual_seed(0)
    return Linear(24, 40)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the products with a packed matrix."""
    calls, product = [0], packed_linear.product

    def counted(*arguments: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return product(*arguments)

    monkeypatch.setattr(packed_linear, "product", counted)
    return calls


def _error(layer: Linear, x: torch.Tensor) -> float:
    """The largest difference to the formula in float64."""
    exact = x.double() @ layer.weight.detach().double().mT + layer.bias.detach().double()
    return float((layer(x).double() - exact).abs().max())


needs_onednn = pytest.mark.skipif(pack(torch.ones(2, 2)) is None, reason="this PyTorch has no oneDNN")


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (3, 7, 24), (200, 24)])
def test_products_are_those_of_the_formula(layer: Linear, products: list[int], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with packed_weights(layer):
        assert _error(layer, x) < 24 * 2**-22
    assert products == [1]


@needs_onednn
@torch.no_grad()
def test_each_block_has_the_weights_of_its_beginning(layer: Linear, products: list[int]) -> None:
    x = torch.randn(5, 24)
    for _ in range(3):
        with packed_weights(layer), packed_weights(layer):
            assert _error(layer, x) < 24 * 2**-22
        layer.weight.data.mul_(2)  # unseen by PyTorch's version counter
        assert _error(layer, x) < 24 * 2**-20
    assert products == [3]


def test_gradients_float64_and_autocast_use_the_matrix_itself(layer: Linear, products: list[int]) -> None:
    x = torch.randn(5, 24, requires_grad=True)
    with packed_weights(layer):
        (gradient,) = torch.autograd.grad(layer(x).sum(), x)
        assert torch.allclose(gradient, layer.weight.sum(0).expand(5, 24))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
    layer.double()
    with torch.no_grad(), packed_weights(layer):
        assert _error(layer, x.double()) < 1e-13
    assert products == [0]
