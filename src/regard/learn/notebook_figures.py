"""An animation of a matplotlib figure: it plays in a notebook, and can be saved as one file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from torch import Tensor


class Animation:
    """`draw(n)` draws frame n of `frames` into `figure`. Nothing is drawn before it is shown or saved."""

    def __init__(self, figure: Any, draw: Callable[[int], Any], frames: int, seconds: float = 0.7) -> None:
        import matplotlib.pyplot as plt

        self.figure, self.draw, self.frames, self.seconds = figure, draw, frames, seconds
        plt.close(figure)  # a notebook would show the empty figure as well

    def _film(self) -> Any:
        from matplotlib.animation import FuncAnimation

        return FuncAnimation(self.figure, self.draw, frames=self.frames, interval=1000 * self.seconds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as .webp or .gif."""
        self._film().save(path, writer="pillow", dpi=80)

    def _repr_html_(self) -> str:
        page: str = self._film().to_jshtml()
        return page


WITH_NUMBERS = 120
"""Cells up to which numbers are written into them."""
DRAWN_AS_CELLS = 900
"""Cells up to which each is a rectangle; larger matrices are drawn as one image."""


def heat_map(
    matrix: Tensor,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    ax: Any = None,
    title: str = "",
    digits: int = 2,
    numbers: bool = True,
    limits: tuple[float, float] | None = None,
) -> Any:
    """Draw `matrix` [rows, columns] with matplotlib and return its axes; row 0 is at the top.

    Negative values are red, positive ones blue. `limits` are the values of the darkest colours; by default the largest
    absolute value of the matrix.
    """
    import matplotlib.pyplot as plt

    values = matrix.detach().to("cpu", torch.float64)
    height, width = values.shape
    if ax is None:
        _, ax = plt.subplots(figsize=(1.2 + 0.55 * min(width, 14), 0.8 + 0.4 * min(height, 14)))
    finite = values[values.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() and finite.abs().max() > 0 else 1.0
    low, high = limits or ((-largest if bool((finite < 0).any()) else 0.0), largest)
    colours: Any = "Blues" if low >= 0 else "RdBu"
    shades = {"cmap": colours, "vmin": low, "vmax": high}
    if height * width <= DRAWN_AS_CELLS:
        ax.pcolormesh(values.numpy(), edgecolors="white", linewidth=0.8, **shades)
        ax.invert_yaxis()
    else:
        ax.imshow(values.numpy(), aspect="auto", interpolation="none", extent=(0, width, height, 0), **shades)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    for labels, axis in ((columns, ax.xaxis), (rows, ax.yaxis)):
        if labels is not None:
            axis.set_ticks([at + 0.5 for at in range(len(labels))], list(labels))
    if numbers and height * width <= WITH_NUMBERS:
        for i, row in enumerate(values.tolist()):
            for j, value in enumerate(row):
                text = f"{value:.{digits}f}".replace("-", "−").replace("inf", "∞")
                dark = math.isfinite(value) and abs(value) > 0.6 * max(abs(low), abs(high))
                ax.text(
                    j + 0.5, i + 0.5, text, ha="center", va="center", color="white" if dark else "black", fontsize=8
                )
    ax.set_title(title)
    return ax
