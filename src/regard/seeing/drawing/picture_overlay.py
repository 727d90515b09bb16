"""A picture once per word of its caption, clear where the model looked when it wrote that word, veiled elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..alignment import alignment_error
from .figure import plain, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from ..alignment.word_alignment import Translation

COLUMNS = 5
WORDS = 40  # drawn at most, the first of a caption
VEIL = 128.0  # grey, which shows on dark pictures and on light ones
THICK = 0.8  # how much of it lies where nothing was seen
FRAME = "#999999"


def looks(caption: Translation) -> tuple[Float[Tensor, "words rows columns"], list[str]]:
    """Weights over the grid of cells for each word, </s> left out; the mean over all maps where there are several."""
    if caption.weights is None:
        raise ValueError("this model has no attention, so there is nothing to show")
    tokens, target = caption.tokens[:-1], caption.tokenizers.target
    if not tokens:
        raise ValueError("this caption has no words, so there is nothing to show")
    places = caption.weights.shape[-1]
    side = round(places**0.5)
    if side * side != places:
        raise ValueError(f"these weights are over {places} places, which are no square grid")
    words = target.words(tokens)
    texts = [""] * (words[-1] + 1)
    for word, piece in zip(words, target.pieces(tokens), strict=True):
        texts[word] += piece.replace("▁", "")
    maps = alignment_error.words(caption.weights.mean(0), words, range(places))
    return maps.unflatten(-1, (side, side)), texts


def veiled(
    picture: UInt8[np.ndarray, "size size 3"], weights: Float[Tensor, "rows columns"]
) -> UInt8[np.ndarray, "size size 3"]:
    """The picture under a grey veil, as thin as the weight is large: at the largest there is none.

    The weights are enlarged smoothly; where one or two cells have nearly all, the cells are drawn as they are.
    """
    size = picture.shape[0], picture.shape[1]
    pointed = int((weights > 0.01 * weights.max()).sum()) <= 2
    how = {"mode": "nearest"} if pointed else {"mode": "bilinear"}
    enlarged = torch.nn.functional.interpolate(weights[None, None].float(), size, **how)[0, 0]  # type: ignore[arg-type]
    veil = THICK * (1 - enlarged / enlarged.max().clamp(min=1e-12))[..., None]
    shown: Any = (torch.from_numpy(picture.copy()) * (1 - veil) + VEIL * veil).round().to(torch.uint8).numpy()
    return shown  # type: ignore[no-any-return]


def most(weights: Float[Tensor, "rows columns"], size: int) -> tuple[float, float, float, float]:
    """Left, top, width and height, in pixels, of the cell with the largest weight."""
    rows, columns = weights.shape
    row, column = divmod(int(weights.argmax()), columns)
    return column * size / columns, row * size / rows, size / columns, size / rows


def save_looks(
    file: str | Path,
    picture: UInt8[np.ndarray, "size size 3"],
    weights: Float[Tensor, "words rows columns"],
    words: Sequence[str],
) -> None:
    """The picture, then once per word, with the word above it (Xu et al. 2015, figure 2); the first `WORDS` of them.

    The cell with the largest weight has an outline, black and white, so that it shows on any ground.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    panels = 1 + min(len(words), WORDS)
    columns = min(COLUMNS, panels)
    lines = -(-panels // columns)
    figure = Figure(figsize=(1.6 * columns, 1.8 * lines), layout="constrained")
    every = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in every[panels:]:
        axes.axis("off")
    for axes in every[:panels]:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color=FRAME, linewidth=0.6)
    every[0].imshow(picture)
    for axes, word, weight in zip(every[1:panels], words, weights, strict=False):
        axes.imshow(veiled(picture, weight))
        left, top, width, height = most(weight, len(picture))
        for colour, line in (("black", 1.8), ("white", 0.7)):
            axes.add_patch(Rectangle((left - 0.5, top - 0.5), width, height, fill=False, ec=colour, lw=line))
        axes.set_title(plain(word), fontsize=11)
    save(figure, file)
