"""The options of every measurement, and the figure that it draws."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Points = Sequence[tuple[float, float]]


def options(about: str) -> argparse.Namespace:
    """`full`, `seeds`, and `save_plot`; one thread, so that figures do not depend on the number of cores."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--full", action="store_true", help="the run of docs/course/claims.md, minutes instead of seconds"
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0 on")
    parser.add_argument("--save-plot", type=Path, metavar="FILE.svg")
    torch.set_num_threads(1)
    return parser.parse_args()


def print_table(x_name: str, curves: Mapping[str, Points], digits: int = 3) -> None:
    """One row per x, one column per curve; a dash where a curve has no point."""
    points = {name: dict(curve) for name, curve in curves.items()}
    print(f"| {x_name} | {' | '.join(points)} |")
    print(f"|---:|{'---:|' * len(points)}")
    for x in sorted({x for curve in points.values() for x in curve}):
        cells = [f"{curve[x]:.{digits}g}" if x in curve else "–" for curve in points.values()]
        print(f"| {x:g} | {' | '.join(cells)} |")


def draw(
    file: Path | None,
    curves: Mapping[str, Points],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    level: tuple[float, str] | None = None,
) -> None:
    """A line per curve; `level` is a horizontal line with its name."""
    if file is None:
        return
    from matplotlib.figure import Figure

    from regard.seeing.figures import save_figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, points), marker in zip(curves.items(), "os^Dv<>Pp*", strict=False):
        axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, markersize=4, label=name)
    if level is not None:
        axes.axhline(level[0], color="gray", linestyle=":", label=level[1])
    axes.set(xlabel=x_label, ylabel=y_label, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, file)
    print(f"wrote {file}")
