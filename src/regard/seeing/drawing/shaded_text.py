"""A sentence in the terminal with words shaded by their weight, and a sparkline of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from rich.text import Text

from .terminal_heatmap import SHADES, cell_style, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from rich.console import Console, ConsoleOptions, RenderResult
    from torch import Tensor

BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class ShadedText:
    """Words and their weights ≥ 0; the largest is the brightest. Without colours a shade ░▒▓█ follows each word."""

    words: Sequence[str]
    weights: Sequence[float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colours = None if console.no_color else console.color_system
        peak = max(self.weights, default=0) or 1.0
        line = Text()
        for word, weight in zip(self.words, self.weights, strict=True):
            style = cell_style(weight / peak, colours)
            if style is None:
                line.append(printable(word) + SHADES[round(weight / peak * (len(SHADES) - 1))].rstrip() + " ")
            else:
                line.append(f" {printable(word)} ", style)
        yield line


def sparkline(values: Float[Tensor, "positions"], width: int = 60) -> str:
    """Numbers ≥ 0 as `width` bars ▁▂▃▄▅▆▇█, each the mean of its interval, scaled to the largest."""
    at = (torch.arange(width) + 0.5) * len(values) / width
    if len(values) > width:
        pooled = torch.nn.functional.adaptive_avg_pool1d(values[None].float(), width)[0]
    else:
        pooled = values.float()[at.long()]
    peak = float(pooled.max()) or 1.0
    return "".join(BARS[round(float(value) / peak * (len(BARS) - 1))] for value in pooled)
