"""Dropout: its share, its mean, its seed."""

from __future__ import annotations

import math
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

from regard.decoding import search
from regard.layers import Dropout, linear, packed_weights
from regard.layers.kernels import packed_products
from regard.layers.kernels.packed_products import kernel_rows, pack
from regard.models import EncoderDecoder, EncoderDecoderConfig
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch


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


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> nn.Linear:
    """A layer that is packed although it is small."""
    monkeypatch.setattr(packed_products, "SMALLEST_MATRIX", 0)
    monkeypatch.setattr(packed_products, "SMALLEST_PRODUCT", 0)
    torch.manual_seed(0)
    return nn.Linear(24, 40)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the products with a packed matrix."""
    calls, product = [0], packed_products.product

    def counted(*arguments: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return product(*arguments)

    monkeypatch.setattr(packed_products, "product", counted)
    return calls


def _error(layer: nn.Linear, x: torch.Tensor) -> float:
    """The largest difference to the formula in float64."""
    exact = x.double() @ layer.weight.detach().double().mT + layer.bias.detach().double()
    y = linear(layer, x)
    assert y.shape == exact.shape
    return float((y.double() - exact).abs().max()) if y.numel() else 0.0


needs_onednn = pytest.mark.skipif(pack(torch.ones(2, 2)) is None, reason="this PyTorch has no oneDNN")


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize("shape", [(24,), (1, 24), (5, 24), (3, 7, 24), (200, 24), (0, 24)])
def test_products_are_those_of_the_formula(layer: nn.Linear, products: list[int], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with packed_weights():
        assert _error(layer, x) < 24 * 2**-22
    assert products == [1]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, torch.Size]]:
    """(rows, shape of the matrix) of each product that oneDNN computes: it compiles and keeps a kernel for each."""
    calls: list[tuple[int, torch.Size]] = []
    compute = packed_products._linear
    assert compute is not None

    def recorded(x: torch.Tensor, matrix: torch.Tensor, *arguments: object) -> torch.Tensor:
        calls.append((x[..., 0].numel(), matrix.shape))
        y: torch.Tensor = compute(x, matrix, *arguments)
        return y

    monkeypatch.setattr(packed_products, "_linear", recorded)
    return calls


@needs_onednn
@torch.no_grad()
def test_many_row_counts_need_few_kernels(layer: nn.Linear, kernels: list[tuple[int, torch.Size]]) -> None:
    """oneDNN keeps each kernel, 0.6 MB, so a server whose requests have many row counts would need gigabytes."""
    with packed_weights():
        for rows in range(1, 641):
            assert linear(layer, torch.ones(rows, 24)).shape == (rows, 40)
    assert len(kernels) == 640
    assert len(set(kernels)) == 33


def test_kernels_have_at_most_a_quarter_more_rows() -> None:
    for rows in range(1, 3000):
        assert rows <= kernel_rows(rows) <= rows * 5 / 4


@needs_onednn
@pytest.mark.parametrize("decoder", ["Transformer", "Bahdanau, dot"])
def test_searches_of_many_sizes_need_few_kernels(
    decoder: str, layer: nn.Linear, kernels: list[tuple[int, torch.Size]]
) -> None:
    config = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["Transformer"], DECODERS[decoder])
    model = EncoderDecoder(config).eval()
    for sentences in range(1, 21):
        pairs = batch(sentences, places=4)
        with torch.no_grad():
            search(model, model.encode(pairs.source, pairs.source_lengths), beams=3, longest=2)
    assert {rows for rows, _ in kernels} <= {kernel_rows(rows) for rows in range(1, 61)}


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize(
    ("shape", "rows", "packs"),
    [((256, 256), 3, 0), ((256, 256), 5, 1), ((255, 256), 160, 0), ((768, 256), 1, 0), ((2048, 512), 1, 1)],
)
def test_only_products_that_are_faster_are_packed(
    products: list[int], shape: tuple[int, int], rows: int, packs: int
) -> None:
    layer = nn.Linear(shape[1], shape[0])
    x = torch.randn(rows, shape[1])
    with packed_weights():
        torch.testing.assert_close(linear(layer, x), layer(x), rtol=1e-4, atol=1e-4)
    assert products == [packs]


@needs_onednn
@torch.no_grad()
def test_each_block_has_the_weights_of_its_beginning(layer: nn.Linear, products: list[int]) -> None:
    x = torch.randn(5, 24)
    for _ in range(3):
        with packed_weights(), packed_weights():
            assert _error(layer, x) < 24 * 2**-22
        layer.weight.data.mul_(2)  # unseen by PyTorch's version counter
        assert _error(layer, x) < 24 * 2**-20
    assert products == [3]


@needs_onednn
@torch.no_grad()
def test_held_copies_are_those_of_weights_that_did_not_change(layer: nn.Linear, products: list[int]) -> None:
    x = torch.randn(5, 24)
    held: dict[Any, Any] = {}
    for _ in range(2):
        with packed_weights(held):
            linear(layer, x)
    (first,) = held.values()
    layer.weight.mul_(2)
    with packed_weights(held), packed_weights():  # a block inside another one uses its copies
        assert _error(layer, x) < 24 * 2**-20
    (second,) = held.values()
    layer.weight = nn.Parameter(torch.zeros(40, 24))
    with packed_weights(held):
        assert _error(layer, x) == 0
    assert products == [4]
    assert first is not second


def test_gradients_autocast_and_float64_use_the_matrix_itself(layer: nn.Linear, products: list[int]) -> None:
    x = torch.randn(5, 24, requires_grad=True)
    with packed_weights():
        (gradient,) = torch.autograd.grad(linear(layer, x).sum(), x)
        assert torch.allclose(gradient, layer.weight.sum(0).expand(5, 24))
    layer.double()
    with torch.no_grad(), packed_weights():
        assert _error(layer, x.double()) < 1e-13
        with torch.autocast("cpu", torch.bfloat16):  # leaves float64 as it is
            assert linear(layer, x.double()).dtype == torch.float64
            assert linear(layer.float(), x.float()).dtype == torch.bfloat16
    assert products == [0]


needs_bfloat16 = pytest.mark.skipif(
    pack(torch.ones(2, 2, dtype=torch.bfloat16)) is None, reason="oneDNN has no bfloat16 here"
)


@needs_bfloat16
@torch.no_grad()
def test_a_bfloat16_layer_is_packed(layer: nn.Linear, products: list[int]) -> None:
    layer.bfloat16()
    x = torch.randn(5, 24).bfloat16()
    with packed_weights():
        torch.testing.assert_close(linear(layer, x), layer(x), rtol=2**-7, atol=2**-7)
    assert products == [1]


@needs_onednn
@torch.no_grad()
def test_another_thread_does_not_leave_its_copy_to_the_next_block(layer: nn.Linear, products: list[int]) -> None:
    x, results = torch.randn(5, 24), []

    def other() -> None:
        with torch.no_grad():
            results.append(linear(layer, x))

    with packed_weights():
        thread = Thread(target=other)
        thread.start()
        thread.join()
        linear(layer, x)
    assert products == [1]  # only the thread that has entered the block
    torch.testing.assert_close(results[0], layer(x))
    layer.weight.data.zero_()
    with packed_weights():
        assert torch.equal(linear(layer, x), layer.bias.expand(5, 40))


@torch.no_grad()
@pytest.mark.parametrize("x", [torch.ones(3, 24, dtype=torch.float64), torch.ones(3, 23), torch.ones(3, 48)])
def test_errors_are_those_of_the_layer(layer: nn.Linear, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError) as expected:
        layer(x)
    with packed_weights():
        linear(layer, torch.ones(2, 24))
        with pytest.raises(RuntimeError) as error:
            linear(layer, x)
    assert str(error.value) == str(expected.value)


@torch.no_grad()
def test_hooks_are_called_inside_a_block(layer: nn.Linear, products: list[int]) -> None:
    layer.register_forward_hook(lambda _layer, _inputs, y: y * 0)
    with packed_weights():
        assert not linear(layer, torch.randn(5, 24)).any()
    assert products == [0]
