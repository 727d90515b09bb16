"""row_shift finds the shift of all rows by comparison, and nothing else."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.capture.taps.moved_scores import row_shift

ROWS, WIDTH = 7, 40


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.randn(2, 3, ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def shifted(scores: torch.Tensor, first: int, stride: int, columns: int) -> torch.Tensor:
    rows = [scores[..., i, first - stride * i : first - stride * i + columns] for i in range(ROWS)]
    return torch.stack(rows, dim=-2)


@pytest.mark.parametrize("layout", ["rows", "columns", "heads last"])
@pytest.mark.parametrize(("first", "stride", "columns"), [(6, 1, 5), (20, 1, 20), (33, 1, 7), (12, 2, 9), (30, 5, 1)])
def test_a_shift_is_found(scores: torch.Tensor, layout: str, first: int, stride: int, columns: int) -> None:
    if layout == "columns":
        scores = scores.mT.contiguous().mT
    if layout == "heads last":
        scores = scores.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert row_shift(scores, shifted(scores, first, stride, columns)) == (first, stride)


def test_one_number_that_differs_is_no_shift(scores: torch.Tensor) -> None:
    x = shifted(scores, 8, 1, 10)
    assert row_shift(scores, x) == (8, 1)
    x[1, 2, 5, 3] += 1
    assert row_shift(scores, x) is None


def test_other_moves_are_no_shift(scores: torch.Tensor) -> None:
    assert row_shift(scores, scores[..., 3:9]) is None  # the same columns of all rows
    assert row_shift(scores, scores.flip(-1)) is None
    assert row_shift(scores, scores.reshape(2, 3, WIDTH, ROWS)) is None
    assert row_shift(scores, scores.roll(1, dims=1)) is None
