"""Weights or contributions of heads as a figure for a paper, with tokens along the sides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .matplotlib_figures import escape_math, require_matplotlib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from ...attention import Contributions, Weights

    Tokens = Sequence[str] | tuple[Sequence[str], Sequence[str]]
    """Of queries and keys alike, or of each."""

CELLS = 512
"""Cells along a side at most: a longer matrix is pooled, by the largest number of each cell."""
NAMES = 64
"""Tokens that are written along a side at most: of more tokens the positions are written."""


def matrix_figure(
    matrices: Mapping[str, Weights | Contributions],
    tokens: Tokens | None = None,
    cmap: str | None = None,
    labels: tuple[str, str] = ("query", "key"),
) -> Any:
    """One panel for each matrix of one head, under its name, all on one scale; a `matplotlib.figure.Figure`.

    Where a number is negative the scale is about 0.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    if not matrices:
        raise ValueError("there is no head to draw: give one or more")
    queries, keys = next(iter(matrices.values())).shape
    sides = [_names(x, count, side) for x, count, side in zip(_pair(tokens), (queries, keys), labels, strict=True)]
    cells = {name: _cells(matrix) for name, matrix in matrices.items()}
    values = torch.stack([*cells.values()])
    limit = float(values.abs().max()) or 1.0
    signed = bool((values < 0).any())
    height, width = (1.0 + 0.16 * count if count <= NAMES else 3.0 for count in (queries, keys))
    columns = math.ceil(math.sqrt(len(cells)))
    rows = -(-len(cells) // columns)
    figure = Figure(figsize=(columns * max(width, 1.6) + 0.9, rows * max(height, 1.6) + 0.3), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, shown) in zip(panels, cells.items(), strict=False):
        axes.imshow(
            shown.numpy(),
            cmap=cmap or ("RdBu" if signed else "Blues"),
            vmin=-limit if signed else 0,
            vmax=limit,
            extent=(-0.5, keys - 0.5, queries - 0.5, -0.5),  # a token stands at its number, pooled or not
            aspect="equal" if queries == keys else "auto",
            interpolation="nearest",
        )
        axes.set_title(escape_math(name), fontsize=8)
        axes.tick_params(labelsize=6)
        for axis, names in ((axes.yaxis, sides[0]), (axes.xaxis, sides[1])):
            if names is not None:
                axis.set_ticks(range(len(names)), labels=[escape_math(each) for each in names])
        if sides[1] is not None:
            axes.tick_params(axis="x", labelrotation=90)
    for axes in panels[len(cells) :]:
        axes.axis("off")
    figure.supylabel(labels[0], fontsize=8)
    figure.supxlabel(labels[1], fontsize=8)
    scale = figure.colorbar(panels[0].images[0], ax=panels.tolist(), shrink=0.8).ax
    scale.tick_params(labelsize=6)
    scale.yaxis.get_offset_text().set_fontsize(6)
    return figure


def _cells(matrix: Weights | Contributions) -> Float[Tensor, "rows columns"]:
    """The matrix, pooled where it is long; on the CPU."""
    queries, keys = matrix.shape
    pooled = matrix.dense() if max(queries, keys) <= CELLS else matrix.map((min(queries, CELLS), min(keys, CELLS)))
    return pooled.float().cpu()


def _pair(tokens: Tokens | None) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    if tokens is None:
        return None, None
    if len(tokens) == 2 and not any(isinstance(x, str) for x in tokens):
        return tokens[0], tokens[1]
    return tokens, tokens  # type: ignore[return-value]


def _names(tokens: Sequence[str] | None, count: int, side: str) -> list[str] | None:
    """The names to write along a side; None where the positions are written."""
    if tokens is not None and len(tokens) != count:
        raise ValueError(
            f"there are {count} positions along the side {side!r} and {len(tokens)} tokens; give one for each, or "
            "tokens=(those of queries, those of keys)"
        )
    return None if tokens is None or count > NAMES else list(tokens)
