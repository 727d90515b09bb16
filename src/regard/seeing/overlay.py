"""A picture once per word of its caption, bright where the model looked when it wrote that word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import aer
from .figure import plain, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from .looked import Translation

COLUMNS = 5
DARK = 0.15  # how bright the picture is where the model did not look at all


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
    maps = aer.words(caption.weights.mean(0), words, range(places))
    return maps.unflatten(-1, (side, side)), texts


def shaded(
    picture: UInt8[np.ndarray, "size size 3"], weights: Float[Tensor, "rows columns"]
) -> UInt8[np.ndarray, "size size 3"]:
    """The picture times the weights, enlarged smoothly; 1 is where the model looked most."""
    size = picture.shape[0], picture.shape[1]
    smooth = torch.nn.functional.interpolate(weights[None, None].float(), size, mode="bilinear")[0, 0]
    light = DARK + (1 - DARK) * smooth / smooth.max().clamp(min=1e-12)
    shown: Any = (torch.from_numpy(picture.copy()) * light[..., None]).round().to(torch.uint8).numpy()
    return shown  # type: ignore[no-any-return]


def save_looks(
    file: str | Path,
    picture: UInt8[np.ndarray, "size size 3"],
    weights: Float[Tensor, "words rows columns"],
    words: Sequence[str],
) -> None:
    """The picture, then the picture once per word, with the word above it (Xu et al. 2015, figure 2)."""
    from matplotlib.figure import Figure

    panels = [("", picture), *((word, shaded(picture, maps)) for word, maps in zip(words, weights, strict=True))]
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1.6 * columns, 1.8 * lines), layout="constrained")
    every = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in every:
        axes.axis("off")
    for axes, (title, pixels) in zip(every, panels, strict=False):
        axes.imshow(pixels)
        axes.set_title(plain(title), fontsize=11)
    save(figure, file)
