"""A sentence in the terminal, each word on a ground as bright as its weight; and a sound as a line of bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from rich.text import Text

from .terminal_heatmap import SHADES, clean, ground

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from rich.console import Console, ConsoleOptions, RenderResult
    from torch import Tensor

BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Shaded:
    """Words and their weights ≥ 0, the largest brightest. Without colours a shade ░▒▓█ stands after each word."""

    words: Sequence[str]
    weights: Sequence[float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colours = None if console.no_color else console.color_system
        peak = max(self.weights, default=0) or 1.0
        line = Text()
        for word, weight in zip(self.words, self.weights, strict=True):
            style = ground(weight / peak, colours)
            if style is None:
                line.append(clean(word) + SHADES[round(weight / peak * (len(SHADES) - 1))].rstrip() + " ")
            else:
                line.append(f" {clean(word)} ", style)
        yield line


def by_word(weights: Float[Tensor, "tokens"], words: Sequence[int]) -> Float[Tensor, "words"]:
    """The weight of a word is that of its pieces together; `words` says which word each token belongs to."""
    return torch.zeros(max(words) + 1).index_add_(0, torch.tensor(words), weights.float())


def bars(values: Float[Tensor, "places"], width: int = 60) -> str:
    """Numbers ≥ 0 as bars ▁▂▃▄▅▆▇█, `width` of them, each the mean of its stretch; the largest is the highest."""
    at = (torch.arange(width) + 0.5) * len(values) / width
    if len(values) > width:
        pooled = torch.nn.functional.adaptive_avg_pool1d(values[None].float(), width)[0]
    else:
        pooled = values.float()[at.long()]
    peak = float(pooled.max()) or 1.0
    return "".join(BARS[round(float(value) / peak * (len(BARS) - 1))] for value in pooled)
