"""Dynamic time warping: when each token was spoken, from attention over the frames of a sound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def align_frames(weights: Float[Tensor, "heads tokens frames"], width: int = 7) -> list[tuple[int, int]]:
    """The frames of each token, as a monotonic path [(token, frame), …].

    As Whisper aligns words (Radford et al. 2022): z-scores over the tokens for each head and frame, a median filter
    of `width` frames, the mean of the heads, and the cheapest path by dynamic time warping.
    """
    if weights.dim() != 3:
        raise ValueError(f"align_frames takes weights [heads, tokens, frames], got {list(weights.shape)}")
    if width < 1 or width % 2 == 0:
        raise ValueError(f"the width of a median filter is odd, got {width}")
    deviation, mean = torch.std_mean(weights.float(), dim=-2, keepdim=True, correction=0)
    scores = (weights - mean) / deviation.clamp_min(1e-12)
    half = min(width // 2, weights.shape[-1] - 1)
    if half:
        padded = torch.nn.functional.pad(scores, (half, half), mode="reflect")
        scores = padded.unfold(-1, 2 * half + 1, 1).median(-1).values
    return cheapest_path(-scores.mean(0))


def cheapest_path(costs: Float[Tensor, "rows cols"]) -> list[tuple[int, int]]:
    """The cheapest path from the first corner to the last by steps down, right or both (Sakoe & Chiba 1978)."""
    table: list[list[float]] = costs.double().tolist()
    rows, cols = len(table), len(table[0])
    total = [[0.0] * cols for _ in range(rows)]
    previous = [[(0, 0)] * cols for _ in range(rows)]
    for i in range(rows):
        for j in range(cols):
            steps = [(i - a, j - b) for a, b in ((1, 1), (1, 0), (0, 1)) if i >= a and j >= b]
            if steps:
                previous[i][j] = min(steps, key=lambda at: total[at[0]][at[1]])
                total[i][j] = total[previous[i][j][0]][previous[i][j][1]]
            total[i][j] += table[i][j]
    path = [(rows - 1, cols - 1)]
    while path[-1] != (0, 0):
        i, j = path[-1]
        path.append(previous[i][j])
    return path[::-1]
