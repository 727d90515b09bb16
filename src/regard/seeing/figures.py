"""Figures drawn with matplotlib, as PNG, SVG or PDF: heatmaps of weights, curves, maps of head scores, sounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..files import check_figure_path as check_figure_path
from ..files import replacing_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from jaxtyping import Float, Int16, UInt8
    from torch import Tensor

    from ..attention.contributions import Contributions
    from ..attention.weights import Weights
    from .call import Call

    Tokens = Sequence[str] | tuple[Sequence[str], Sequence[str]]
    """Of queries and keys alike, or of each."""


def save_heatmap(
    file: str | Path, weights: Float[Tensor, "rows cols"], rows: Sequence[str], cols: Sequence[str]
) -> None:
    """A heatmap of weights in grey, with labels for rows and columns; black is 0."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 0.35 * len(cols), 1.2 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(weights.float().cpu().numpy(), cmap="gray", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(len(cols)), labels=[escape_math(name) for name in cols], rotation=90)
    axes.set_yticks(range(len(rows)), labels=[escape_math(name) for name in rows])
    axes.xaxis.tick_top()
    figure.colorbar(image, ax=axes, shrink=0.8)
    save_figure(figure, file)


def save_curves(
    file: str | Path,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    *,
    log_y: bool = False,
) -> None:
    """One curve of points (x, y) per name; y from 0 on, or on a logarithmic scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, points), marker in zip(curves.items(), "os^Dv<>Pp*" * len(curves), strict=False):
        axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, markersize=4, label=escape_math(name))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.05 * max((y for points in curves.values() for _, y in points), default=0) or 1)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    save_figure(figure, file)


def save_head_maps(
    file: str | Path, maps: Mapping[str, Float[Tensor, "layers heads"]], *, signed: bool = False
) -> None:
    """One small map of layers × heads per name, with its largest value in the title: from 0 to 1.

    `signed`: each on its own scale about 0, red above and blue below.
    """
    from matplotlib.figure import Figure

    columns = min(4, len(maps))
    rows = -(-len(maps) // columns)
    layers, heads = next(iter(maps.values())).shape
    size = (1.5 if signed else 1.0) + 0.14 * heads, 1.0 + 0.14 * layers
    figure = Figure(figsize=(columns * size[0] + 0.8 * (not signed), rows * size[1]), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, values) in zip(panels, maps.items(), strict=False):
        sizes = values.nan_to_num(0).abs()
        low, high = (-float(sizes.max()) or -1.0, float(sizes.max()) or 1.0) if signed else (0.0, 1.0)
        colours = "RdBu_r" if signed else "viridis"
        image = axes.imshow(values.float().cpu().numpy(), cmap=colours, vmin=low, vmax=high, aspect="equal")
        layer, head = divmod(int(sizes.argmax()), heads)
        number = f"{float(values[layer, head]):{'+' if signed else ''}.2f}"
        axes.set_title(f"{escape_math(name)}\n{layer}.{head}: {number}", fontsize=8)
        axes.tick_params(labelsize=6)
        if signed:
            figure.colorbar(image, ax=axes, shrink=0.6).ax.tick_params(labelsize=6)
    for axes in panels[len(maps) :]:
        axes.axis("off")
    figure.supxlabel("head", fontsize=8)
    figure.supylabel("layer", fontsize=8)
    if not signed:
        figure.colorbar(panels[0].images[0], ax=panels.tolist(), shrink=0.8)
    save_figure(figure, file)


def save_sound_figure(
    file: str | Path,
    samples: Int16[np.ndarray, "samples"],
    rate: int,
    weights: Float[Tensor, "rows places"],
    rows: Sequence[str],
) -> None:
    """The waveform of a sound, and below it the weights on the same time axis.

    One row of weights is a curve; several rows, one for each letter of the output, are a heatmap.
    """
    from matplotlib.figure import Figure

    if len(rows) != len(weights):
        raise ValueError(f"there are {len(weights)} rows of weights and {len(rows)} labels")
    seconds = len(samples) / rate
    figure = Figure(figsize=(7.0, 2.6 + 0.25 * len(rows)), layout="constrained")
    wave, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, max(1.5, 0.4 * len(rows))])
    wave.plot([i / rate for i in range(len(samples))], samples / 32768, linewidth=0.5, color="#333333")
    wave.set_ylabel("sound")
    if len(rows) > 1:
        below.imshow(weights.float().numpy(), aspect="auto", cmap="gray", vmin=0, extent=(0, seconds, len(rows), 0))
        below.set_yticks([i + 0.5 for i in range(len(rows))], labels=[escape_math(name) for name in rows])
    else:
        places = weights.shape[1]
        below.step(
            [i * seconds / places for i in range(places + 1)],
            [*weights[0].tolist(), float(weights[0, -1])],
            where="post",
            color="#159a8c",
        )
        below.set_ylim(0, None)
        below.set_ylabel(escape_math(rows[0]))
    below.set_xlabel("seconds")
    below.set_xlim(0, seconds)
    save_figure(figure, file)


def escape_math(name: str) -> str:
    return name.replace("$", r"\$")  # which would begin a formula


def save_figure(figure: Any, file: str | Path) -> None:
    import matplotlib

    file = check_figure_path(file)
    # No date, and a fixed seed for the ids of an SVG: the same figure gives the same file.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix)
    with replacing_file(file) as unfinished, matplotlib.rc_context({"svg.hashsalt": "regard"}):
        figure.savefig(unfinished, dpi=200, metadata=metadata, format=file.suffix[1:])


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


def call_figure(
    call: Call,
    heads: int | Sequence[int] | None,
    contributions: Contributions | None,
    entry: int,
    tokens: Tokens | None,
    cmap: str | None,
    labels: tuple[str, str],
    file: str | Path | None,
) -> Any:
    """The figure of `Call.plot`."""
    if file is not None:
        check_figure_path(file)
    whole = call.weights if contributions is None else contributions
    if tuple(whole.shape) != call.shape:
        raise ValueError(f"contributions of shape {tuple(whole.shape)} are not those of {call.name}, {call.shape}")
    numbers = range(call.heads) if heads is None else [heads] if isinstance(heads, int) else heads
    figure = matrix_figure({f"head {n}": whole[call.at(n, entry)] for n in numbers}, tokens, cmap, labels)
    if file is not None:
        save_figure(figure, file)
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


COLUMNS = 5
MAX_WORDS = 40  # the first words of a caption are drawn
GREY = 128.0  # visible on dark and on light pictures
OPACITY = 0.8  # of the grey where the weight is 0
FRAME = "#999999"


def overlay(
    picture: UInt8[np.ndarray, "size size 3"], weights: Float[Tensor, "rows columns"]
) -> UInt8[np.ndarray, "size size 3"]:
    """The picture under grey, which is opaque where the weight is 0 and transparent at the largest weight.

    Weights are interpolated bilinearly; if one or two cells have nearly all, the cells are drawn as squares.
    """
    size = picture.shape[0], picture.shape[1]
    concentrated = int((weights > 0.01 * weights.max()).sum()) <= 2
    mode = "nearest" if concentrated else "bilinear"
    enlarged = torch.nn.functional.interpolate(weights[None, None].float(), size, mode=mode)[0, 0]
    alpha = OPACITY * (1 - enlarged / enlarged.max().clamp(min=1e-12))[..., None]
    blended: Any = (torch.from_numpy(picture.copy()) * (1 - alpha) + GREY * alpha).round().to(torch.uint8).numpy()
    return blended  # type: ignore[no-any-return]


def largest_cell(weights: Float[Tensor, "rows columns"], size: int) -> tuple[float, float, float, float]:
    """Left, top, width and height, in pixels, of the cell with the largest weight."""
    rows, columns = weights.shape
    row, column = divmod(int(weights.argmax()), columns)
    return column * size / columns, row * size / rows, size / columns, size / rows


def save_caption_figure(
    file: str | Path,
    picture: UInt8[np.ndarray, "size size 3"],
    weights: Float[Tensor, "words rows columns"],
    words: Sequence[str],
) -> None:
    """The picture, then the overlay of each word (Xu et al. 2015, figure 2), up to `MAX_WORDS`.

    The cell with the largest weight has an outline in black and white, which is visible on any picture.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    count = 1 + min(len(words), MAX_WORDS)
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(1.6 * columns, 1.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[count:]:
        axes.axis("off")
    for axes in panels[:count]:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color=FRAME, linewidth=0.6)
    panels[0].imshow(picture)
    for axes, word, weight in zip(panels[1:count], words, weights, strict=False):
        axes.imshow(overlay(picture, weight))
        left, top, width, height = largest_cell(weight, len(picture))
        for colour, line in (("black", 1.8), ("white", 0.7)):
            axes.add_patch(Rectangle((left - 0.5, top - 0.5), width, height, fill=False, ec=colour, lw=line))
        axes.set_title(escape_math(word), fontsize=11)
    save_figure(figure, file)
