"""What is wrong in one row alone, which is none of the rows that are usually compared, is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from regard import watch
from regard.seeing.capture.call_inputs_and_output import evenly_spaced, some_rows
from regard.seeing.capture.recording.written_scores import ROWS

if TYPE_CHECKING:
    from regard import Seen

H, T, D, ROW = 2, 200, 8, 50
Scores = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    """A module that writes attention out; `weights` has those it used."""

    num_heads = H

    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores, self.weights = scores, torch.empty(0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = self.scores(q, k).softmax(-1)
        self.weights = w.clone()
        return w @ v


def seen_of(scores: Scores) -> tuple[Seen, Block]:
    torch.manual_seed(0)
    model = Block(scores)
    with torch.no_grad(), watch(model) as seen:
        model(*torch.randn(3, 1, H, T, D))
    return seen, model


def _in_row(closed: slice) -> Tensor:
    mask = torch.zeros(T, T, dtype=torch.bool)
    mask[ROW, closed] = True
    return mask


NOTHING = torch.zeros(T, dtype=torch.bool)
HALF = _in_row(slice(0, None, 2))
BEHIND = torch.arange(T)[:, None] - torch.arange(T)
NEAR = (BEHIND >= 0) & (BEHIND < 2)
PADDING = (torch.arange(T) == ROW) | (torch.arange(T) == ROW - 1)
"""With a window of two keys nothing is left to the query ROW."""
PAST = BEHIND >= 0
ONE_ROW_LOW = torch.where(torch.arange(T) == ROW, -2e4, 0.0)[:, None].expand(T, T).contiguous()

ONE_ROW: dict[str, Scores] = {
    "a mask, and one that closes nothing": lambda q, k: (q @ k.mT).masked_fill(HALF, -1e9).masked_fill(NOTHING, -1e9),
    "two masks": lambda q, k: (q @ k.mT).masked_fill(~NEAR, -1e9).masked_fill(PADDING, -1e9),
    "a mask and a bias": lambda q, k: (q @ k.mT).masked_fill(~NEAR, -1e9) + PADDING * -1e9,
    "a bias and a mask": lambda q, k: (q @ k.mT + PADDING * -1e9).masked_fill(~NEAR, -1e9),
    "two biases": lambda q, k: q @ k.mT + ~NEAR * -1e9 - PADDING * 1e9,
    "a gate": lambda q, k: (q @ k.mT) * (~HALF).float(),
    "a gate and another bias": lambda q, k: (q @ k.mT) * (PAST & ~HALF).float() + -1e4 * (~PAST).float(),
    "a gate and a product": lambda q, k: (q @ k.mT) * (~HALF).float() + (q * 2) @ k.mT,
    "a mask and a small scale": lambda q, k: (q @ k.mT).masked_fill(HALF, -1e4) * 1e-4,
    "a mask and a negative scale": lambda q, k: (q @ k.mT * -1).masked_fill(HALF, -1e9) * -1,
    "a bias and a small scale": lambda q, k: (q @ k.mT + HALF * -1e4) * 1e-4,
    "a mask and a bias that opens": lambda q, k: (q @ k.mT).masked_fill(HALF, -1e4) + HALF * 1e4,
    "a floor": lambda q, k: (q @ k.mT + ONE_ROW_LOW).clamp_min(-1e4),
}


def test_the_row_is_none_of_those_that_are_kept_or_compared() -> None:
    rows, _ = some_rows(torch.zeros(T, D))
    assert rows is not None
    assert ROW not in rows
    assert ROW not in evenly_spaced(T, ROWS)


@pytest.mark.parametrize("way", ONE_ROW)
def test_masks_and_steps_that_concern_one_row(way: str) -> None:
    seen, model = seen_of(ONE_ROW[way])
    (call,) = seen
    assert seen.faithful is True
    torch.testing.assert_close(call.weights.dense(), model.weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("second", [NOTHING, torch.arange(T) >= T - 3], ids=["closes nothing", "padding"])
def test_two_masks_are_joined_and_need_no_matrix(second: Tensor) -> None:
    seen, model = seen_of(lambda q, k: (q @ k.mT).masked_fill(~PAST, -1e9).masked_fill(second, -1e9))
    assert seen.matrices == []
    torch.testing.assert_close(seen[0].weights.dense(), model.weights, rtol=1e-4, atol=1e-6)


INDICES = {
    "the same for all queries": torch.arange(T).flip(0),
    "the same for all keys": torch.arange(T)[:, None],
    "one column": torch.zeros(1, 1, dtype=torch.long),
}


@pytest.mark.parametrize("way", INDICES)
def test_gathered_columns_with_an_expanded_index(way: str) -> None:
    table = torch.randn(D, T, generator=torch.Generator().manual_seed(1))

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT + (q @ table).gather(-1, INDICES[way].expand(1, H, T, T))

    seen, model = seen_of(scores)
    assert seen.missed == []
    assert seen.faithful is True
    torch.testing.assert_close(seen[0].weights.dense(), model.weights, rtol=1e-4, atol=1e-6)
