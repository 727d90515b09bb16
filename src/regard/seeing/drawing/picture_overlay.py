"""A picture with the attention of each caption word laid over it: clear where the weight is large, grey elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .matplotlib_figures import escape_math, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from jaxtyping import Float, UInt8
    from torch import Tensor

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
