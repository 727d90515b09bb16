"""Draws docs/positions.svg: sinusoidal, learned, rotary and ALiBi positions as heat maps.

python -m tools.positions_plot
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

from regard import Alibi
from regard.layers import LearnedPositions, RotaryPositions, SinusoidalPositions
from regard.seeing.figures import save_figure

PAGE = Path(__file__).parents[1] / "docs" / "positions.svg"
COUNT, WIDTH, HEADS = 64, 64, 4


def main() -> None:
    torch.manual_seed(0)
    i, j = torch.arange(COUNT)[:, None], torch.arange(COUNT)
    bias = Alibi(HEADS).by_distance(torch.arange(-COUNT, COUNT + 1))[0]  # of the first head, by j − i
    panels = {
        "sinusoidal: PE(p)": (SinusoidalPositions(WIDTH).matrix(COUNT), "component", "position p"),
        "learned, before training": (LearnedPositions(WIDTH, COUNT).matrix(COUNT).detach(), "component", "position p"),
        "rotary: cosine of each plane's angle": (RotaryPositions(WIDTH).matrix(COUNT), "plane", "position p"),
        "ALiBi, first head: added to energies": (bias[j - i + COUNT], "key j", "query i"),
    }
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    for axes, (title, (values, x_label, y_label)) in zip(figure.subplots(2, 2).flatten(), panels.items(), strict=True):
        image = axes.imshow(values.double().numpy(), cmap="viridis", aspect="auto", interpolation="nearest")
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        figure.colorbar(image, ax=axes, shrink=0.8)
    save_figure(figure, PAGE)


if __name__ == "__main__":
    main()
