"""Alignments beyond the best key: links of both directions made one, and the path through time of sound.

`aer.py` has the argmax links themselves, word-level weights and the error rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from .alignment_error import Links

NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


def symmetrised(
    forward: Links, backward: Links, how: Literal["intersection", "union", "grow-diag"] = "grow-diag"
) -> Links:
    """The links of two directions, both written (source, target), as one set (Och & Ney 2003, section 4.3).

    "grow-diag" begins with what both have and adds, from what either has, neighbours (diagonal ones too) of links it
    has already, as long as they give a word its first link (Koehn, Och & Marcu 2003).
    """
    both, either = forward & backward, forward | backward
    if how == "intersection":
        return both
    if how == "union":
        return either
    if how != "grow-diag":
        raise ValueError(f'links are joined by "intersection", "union" or "grow-diag", got {how!r}')
    links = set(both)
    grown = True
    while grown:
        grown = False
        for source, target in sorted(links):
            for i, j in NEIGHBOURS:
                new = source + i, target + j
                alone = all(new[0] != a for a, _ in links) or all(new[1] != b for _, b in links)
                if new in either and new not in links and alone:
                    links.add(new)
                    grown = True
    return links


def time_path(weights: Float[Tensor, "heads tokens frames"], width: int = 7) -> list[tuple[int, int]]:
    """Which frames each token was heard in: [(token, frame), …], never going back.

    As Whisper aligns words (Radford et al. 2022): z-scores over the tokens for each head and frame, a median filter
    of `width` frames, the mean of the heads, and the cheapest path through it by dynamic time warping.
    """
    if weights.dim() != 3:
        raise ValueError(f"time_path takes weights [heads, tokens, frames], got {list(weights.shape)}")
    if width < 1 or width % 2 == 0:
        raise ValueError(f"a median filter has an odd width, got {width}")
    deviation, mean = torch.std_mean(weights.float(), dim=-2, keepdim=True, correction=0)
    scores = (weights - mean) / deviation.clamp_min(1e-12)
    half = min(width // 2, weights.shape[-1] - 1)
    if half:
        padded = torch.nn.functional.pad(scores, (half, half), mode="reflect")
        scores = padded.unfold(-1, 2 * half + 1, 1).median(-1).values
    return warped(-scores.mean(0))


def warped(costs: Float[Tensor, "rows cols"]) -> list[tuple[int, int]]:
    """The cheapest path from the first corner to the last by steps down, right or both (Sakoe & Chiba 1978)."""
    table: list[list[float]] = costs.double().tolist()
    rows, cols = len(table), len(table[0])
    total = [[0.0] * cols for _ in range(rows)]
    came = [[(0, 0)] * cols for _ in range(rows)]
    for i in range(rows):
        for j in range(cols):
            steps = [(i - a, j - b) for a, b in ((1, 1), (1, 0), (0, 1)) if i >= a and j >= b]
            if steps:
                came[i][j] = min(steps, key=lambda at: total[at[0]][at[1]])
                total[i][j] = total[came[i][j][0]][came[i][j][1]]
            total[i][j] += table[i][j]
    path = [(rows - 1, cols - 1)]
    while path[-1] != (0, 0):
        i, j = path[-1]
        path.append(came[i][j])
    return path[::-1]
