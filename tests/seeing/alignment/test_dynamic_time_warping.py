"""Dynamic time warping against all paths, and tokens aligned with frames."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.alignment.dynamic_time_warping import align_frames, cheapest_path


def every_path(rows: int, cols: int) -> list[list[tuple[int, int]]]:
    if (rows, cols) == (1, 1):
        return [[(0, 0)]]
    paths = []
    for a, b in ((1, 1), (1, 0), (0, 1)):
        if rows > a and cols > b:
            paths += [[*path, (rows - 1, cols - 1)] for path in every_path(rows - a, cols - b)]
    return paths


def test_time_warping_finds_the_cheapest_path() -> None:
    costs = torch.rand(4, 5, dtype=torch.float64)
    best = min(every_path(4, 5), key=lambda path: sum(float(costs[at]) for at in path))
    assert cheapest_path(costs) == best


def test_sound_is_aligned_in_time() -> None:
    """Tokens heard one after the other, each for ten frames, under noise."""
    truth = torch.arange(40) // 10
    weights = (torch.rand(3, 4, 40) + 4 * (truth == torch.arange(4)[:, None])).softmax(-1)
    path = align_frames(weights)
    heard = {frame: token for token, frame in path}
    assert sum(heard[frame] == int(truth[frame]) for frame in range(40)) >= 36
    with pytest.raises(ValueError, match="odd"):
        align_frames(weights, width=4)
