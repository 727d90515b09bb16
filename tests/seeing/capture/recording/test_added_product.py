"""AddedProduct: the product in blocks is that of the whole matrices, shifted and rounded or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.attention import Softmax, Weights
from regard.attention.energies.energy_forms import DotForm
from regard.attention.energies.lazy_energy_matrix import EnergyMatrix
from regard.seeing.capture.recording.added_product import AddedProduct, columns_of

B, H, T, K, D = 2, 3, 6, 9, 4


def energies(added: AddedProduct) -> EnergyMatrix:
    torch.manual_seed(1)
    a, b = torch.randn(B, H, T, D, dtype=torch.float64), torch.randn(B, H, K, D, dtype=torch.float64)
    return EnergyMatrix(a, b, DotForm(0.5), (B, H), (added,))


def product(lead: tuple[int, ...], columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return torch.randn(*lead, T, D, dtype=torch.float64), torch.randn(*lead, columns, D, dtype=torch.float64)


@pytest.mark.parametrize("lead", [(B, H), (1, H), (H,), ()])
@pytest.mark.parametrize("stride", [0, 1, 2])
def test_blocks_are_those_of_the_whole_matrix(lead: tuple[int, ...], stride: int) -> None:
    first = stride * (T - 1)  # of row 0
    a, b = product(lead, K + first)
    p = a @ b.mT * 0.3
    rows = [p[..., i, first - stride * i : first - stride * i + K] for i in range(T)]
    columns = torch.arange(K + first) if stride else None
    matrix = energies(AddedProduct(a, b, 0.3, (), columns, max(stride, 1)))
    expected = replace(matrix, modifiers=()).whole() + torch.stack(rows, dim=-2)
    torch.testing.assert_close(matrix.whole(), expected)
    weights = Weights(matrix, Softmax())
    torch.testing.assert_close(weights.dense(), expected.softmax(-1))
    torch.testing.assert_close(weights.tile([4, 1], slice(2, 7)), expected.softmax(-1)[..., [4, 1], 2:7])


def test_it_is_rounded_as_the_model_rounds() -> None:
    a, b = (x.to(torch.bfloat16) for x in product((B, H), K))
    matrix = energies(AddedProduct(a, b, 1.0, [("bfloat16", 1.0), ("bfloat16", 0.3)]))
    expected = replace(matrix, modifiers=()).whole() + (a @ b.mT * 0.3).double()
    torch.testing.assert_close(matrix.whole(), expected, rtol=0, atol=1e-12)


def test_a_trace_describes_it() -> None:
    first, second = product((B, H), K), product((H,), 2 * K)
    inner = AddedProduct(second[0][..., :1, :].expand(H, K, D), second[1], 0.2, (), torch.arange(2 * K) // 2, 1, True)
    part = AddedProduct(*first, 0.3, [("bfloat16", 0.5)], plus=inner, rounding_of_sum=[("bfloat16", 1.0)])
    settings, tensors = part.describe(2)
    again = AddedProduct.rebuild(settings, tensors, 2)
    torch.testing.assert_close(energies(again).whole(), energies(part).whole(), rtol=0, atol=0)


@pytest.mark.parametrize("stride", [0, 1])
def test_transposed_and_added_to_another(stride: int) -> None:
    """Rows of the product are keys, and each has a column for the distance of the query."""
    torch.manual_seed(3)
    a, b = torch.randn(B, H, K, D, dtype=torch.float64), torch.randn(B, H, T, D, dtype=torch.float64)
    index = torch.arange(K)[:, None] * 0 + torch.arange(T)
    columns = None
    if stride:
        index = (torch.arange(K)[:, None] - torch.arange(T) + 20) // 3 % T
        columns = columns_of(index)
        assert columns is not None
    p = (a @ b.mT).gather(-1, index.expand(B, H, K, T)).mT
    first = product((B, H), K)
    part = AddedProduct(*first, 0.3, plus=AddedProduct(a, b, 0.7, (), columns, transposed=True))
    matrix = energies(part)
    expected = replace(matrix, modifiers=()).whole() + (first[0] @ first[1].mT * 0.3 + p * 0.7)
    torch.testing.assert_close(matrix.whole(), expected)
    torch.testing.assert_close(
        Weights(matrix, Softmax()).tile([4, 1], slice(2, 7)), expected.softmax(-1)[..., [4, 1], 2:7]
    )


def test_columns_of_distances() -> None:
    distance = torch.arange(5)[:, None] - torch.arange(8)
    columns = columns_of(distance.abs())
    assert columns is not None
    assert columns.tolist() == [4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7]
    distance[2, 3] += 1
    assert columns_of(distance) is None
