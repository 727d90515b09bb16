"""Figures for papers and pages, as PNG, SVG or PDF: a heatmap of weights, and curves over sentence length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor

KINDS = (".png", ".svg", ".pdf")


def check(file: str | Path) -> Path:
    """The file, if a figure can be written there: asked before the work, not after."""
    file = Path(file)
    if file.suffix not in KINDS:
        raise ValueError(f"{file}: a figure is written as {', '.join(KINDS)}; end the name in one of them")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as missing:
        raise ValueError("figures need matplotlib; install it with: pip install 'regard[train]'") from missing
    return file


def save_weights(
    file: str | Path, weights: Float[Tensor, "rows cols"], rows: Sequence[str], cols: Sequence[str]
) -> None:
    """The weights as a picture: a row for each target word, a column for each source word, black is 0."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 0.35 * len(cols), 1.2 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(weights.float().cpu().numpy(), cmap="gray", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(len(cols)), labels=[plain(name) for name in cols], rotation=90)
    axes.set_yticks(range(len(rows)), labels=[plain(name) for name in rows])
    axes.xaxis.tick_top()
    figure.colorbar(picture, ax=axes, shrink=0.8)
    save(figure, file)


def save_curves(file: str | Path, curves: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> None:
    """One line of (x, y) per name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, points), marker in zip(curves.items(), "os^Dv<>Pp*" * len(curves), strict=False):
        axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, markersize=4, label=plain(name))
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(0, 1.05 * max(y for points in curves.values() for _, y in points) or 1)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    save(figure, file)


def save_grids(file: str | Path, grids: Mapping[str, Float[Tensor, "layers heads"]], most: float = 1.0) -> None:
    """One small map of layers × heads per name, from 0 to `most`, with the largest value of each in its title."""
    from matplotlib.figure import Figure

    columns = min(4, len(grids))
    lines = -(-len(grids) // columns)
    layers, heads = next(iter(grids.values())).shape
    size = 1.0 + 0.14 * heads, 0.9 + 0.14 * layers
    figure = Figure(figsize=(columns * size[0] + 0.8, lines * size[1]), layout="constrained")
    every = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, (name, scores) in zip(every, grids.items(), strict=False):
        axes.imshow(scores.float().cpu().numpy(), cmap="viridis", vmin=0, vmax=most, aspect="equal")
        layer, head = divmod(int(scores.argmax()), heads)
        axes.set_title(f"{plain(name)}\n{layer}.{head}: {float(scores.max()):.2f}", fontsize=8)
        axes.tick_params(labelsize=6)
    for axes in every[len(grids) :]:
        axes.axis("off")
    figure.supxlabel("head", fontsize=8)
    figure.supylabel("layer", fontsize=8)
    figure.colorbar(every[0].images[0], ax=every.tolist(), shrink=0.8)
    save(figure, file)


def plain(name: str) -> str:
    return name.replace("$", r"\$")  # which would begin a formula


def save(figure: Any, file: str | Path) -> None:
    import matplotlib

    file = check(file)
    unfinished = file.with_name(f".{file.name}.unfinished{file.suffix}")
    # No date and a fixed seed for the ids of an SVG: the same figure is the same file.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix)
    try:
        with matplotlib.rc_context({"svg.hashsalt": "regard"}):
            figure.savefig(unfinished, dpi=200, metadata=metadata)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
