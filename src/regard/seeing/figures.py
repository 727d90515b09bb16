"""Figures drawn with matplotlib, as PNG, SVG or PDF: heatmaps of weights, curves, maps of head scores, sounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rich.table import Table
from rich.text import Text

from ..files import replacing_file
from .heads import entry_weights
from .patterns import PATTERNS, THRESHOLDS, Patterns
from .terminal import heatmap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from jaxtyping import Float, Int16, UInt8
    from rich.console import RenderableType
    from torch import Tensor

    from .call import Call
    from .patterns import HeadScores
    from .trace import Seen

SUFFIXES = (".png", ".svg", ".pdf")


def check_figure_path(file: str | Path) -> Path:
    """The path, if a figure can be written there. Call it before a long computation."""
    file = Path(file)
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{file}: a figure is written as {', '.join(SUFFIXES)}; end the name in one of them")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}")
    require_matplotlib()
    return file


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as missing:
        raise ValueError("figures need matplotlib; install it with: pip install 'regard[train]'") from missing


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


def save_head_maps(file: str | Path, maps: Mapping[str, Float[Tensor, "layers heads"]], vmax: float = 1.0) -> None:
    """One small map of layers × heads per name, from 0 to `vmax`, with the largest value of each in its title."""
    from matplotlib.figure import Figure

    columns = min(4, len(maps))
    rows = -(-len(maps) // columns)
    layers, heads = next(iter(maps.values())).shape
    size = 1.0 + 0.14 * heads, 0.9 + 0.14 * layers
    figure = Figure(figsize=(columns * size[0] + 0.8, rows * size[1]), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, scores) in zip(panels, maps.items(), strict=False):
        axes.imshow(scores.float().cpu().numpy(), cmap="viridis", vmin=0, vmax=vmax, aspect="equal")
        layer, head = divmod(int(scores.argmax()), heads)
        axes.set_title(f"{escape_math(name)}\n{layer}.{head}: {float(scores.max()):.2f}", fontsize=8)
        axes.tick_params(labelsize=6)
    for axes in panels[len(maps) :]:
        axes.axis("off")
    figure.supxlabel("head", fontsize=8)
    figure.supylabel("layer", fontsize=8)
    figure.colorbar(panels[0].images[0], ax=panels.tolist(), shrink=0.8)
    save_figure(figure, file)


def save_signed_maps(file: str | Path, maps: Mapping[str, Float[Tensor, "layers heads"]]) -> None:
    """One map of layers × heads per name, each on its own scale about 0: red above, blue below."""
    from matplotlib.figure import Figure

    layers, heads = next(iter(maps.values())).shape
    size = 1.5 + 0.14 * heads, 1.0 + 0.14 * layers
    figure = Figure(figsize=(len(maps) * size[0], size[1]), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False).flatten()
    for axes, (name, values) in zip(panels, maps.items(), strict=True):
        limit = float(values.nan_to_num(0).abs().max()) or 1.0
        image = axes.imshow(values.float().cpu().numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="equal")
        layer, head = divmod(int(values.nan_to_num(0).abs().argmax()), heads)
        axes.set_title(f"{escape_math(name)}\n{layer}.{head}: {float(values[layer, head]):+.2f}", fontsize=8)
        axes.tick_params(labelsize=6)
        figure.colorbar(image, ax=axes, shrink=0.6).ax.tick_params(labelsize=6)
    figure.supxlabel("head", fontsize=8)
    figure.supylabel("layer", fontsize=8)
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


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from ..attention.contributions import Contributions
    from ..attention.weights import Weights

    Tokens = Sequence[str] | tuple[Sequence[str], Sequence[str]]
    """Of queries and keys alike, or of each."""

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
    require_matplotlib()
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


MAX_TOKENS = 120
"""Tokens up to which a head is drawn in the terminal."""
LABELS = {
    "next": ("n", "cyan"),
    "previous": ("p", "green"),
    "self": ("s", "yellow"),
    "first": ("F", "blue"),
    "sink": ("f", "blue"),
    "delimiter": ("d", ""),
    "punctuation": (".", ""),
    "broad": ("b", "bright_black"),
    "positional": ("o", ""),
    "identical": ("=", "red"),
    "other sentence": ("≈", ""),
    "related": ("~", ""),
    "duplicate": ("u", "red"),
    "induction": ("i", "magenta"),
}
"""The letter and the colour of each label."""


class TokenLink(NamedTuple):
    """A query token and its key token of largest weight."""

    weight: float
    layer: int
    head: int
    query: int
    key: int


def label_table(patterns: Patterns) -> Table:
    """Layers × heads, with a letter for each label of a head; · for none."""
    heads = patterns.heads()
    width = max(head.head for head in heads) + 1
    table = Table("layer", *(str(n) for n in range(width)), box=None, title="what each head does", padding=(0, 1))
    for layer, _ in enumerate(patterns.names):
        row = [head for head in heads if head.layer == layer]
        table.add_row(str(layer), *(_letters(head) for head in row))
    used = dict.fromkeys(label for head in heads for label in head.labels)
    table.caption = "  ".join(f"{LABELS[name][0]} {name}" for name in THRESHOLDS if name in used) or "no label"
    return table


def _letters(head: HeadScores) -> Text:
    return Text.assemble(*(LABELS[name] for name in head.labels[:2])) if head.labels else Text("·", style="dim")


def best_heads_table(patterns: Patterns, count: int = 3) -> Table:
    """For each pattern the heads with the highest scores, and the p value of the first."""
    table = Table("pattern", "label above", "heads that score highest (layer.head score)", "p", box=None)
    for name in PATTERNS:
        heads = patterns.strongest(name, count)
        if not heads or name not in heads[0].scores or name == "sink":
            continue
        scores = "  ".join(f"{x.layer}.{x.head} {x.scores[name]:.2f}" for x in heads)
        p = f"{heads[0].p[name]:.2f}" if name in heads[0].p else ""
        table.add_row(name, f"{THRESHOLDS[name]:g}" if name in THRESHOLDS else "", scores, p)
    return table


def strongest_links(seen: Seen, count: int = 12, entry: int = 0) -> list[TokenLink]:
    """The largest weights between tokens, one link for each pair; each head and query contributes its best key.

    In self-attention the token itself, its neighbours and the first token are left out: many heads attend there
    whatever the words are.
    """
    links: dict[tuple[str, int, int], TokenLink] = {}
    for layer, call in enumerate(seen):
        top = entry_weights(call, entry).top(1)
        values, keys = top.values[..., 0].cpu(), top.indices[..., 0].cpu()  # [heads, queries]
        if call.kind == "self":
            near = (keys - torch.arange(keys.shape[-1])).abs() <= 1
            values = values.masked_fill(near | (keys == 0), 0)
        largest = values.flatten().topk(min(count, values.numel()))
        for value, at in zip(largest.values.tolist(), largest.indices.tolist(), strict=True):
            head, query = divmod(at, values.shape[-1])
            link = TokenLink(value, layer, head, query, int(keys[head, query]))
            pair = call.kind, link.query, link.key
            if value > 0 and (pair not in links or links[pair].weight < value):
                links[pair] = link
        call.forget()
    return sorted(links.values(), reverse=True)[:count]


def link_table(seen: Seen, count: int = 12) -> Table:
    """The strongest links: query token, key token, weight and head."""
    table = Table("looks at", "", "weight", "layer.head", box=None, title="strongest links")
    for link in strongest_links(seen, count):
        rows, cols = row_and_column_tokens(seen, seen[link.layer])
        query = rows[link.query] if link.query < len(rows) else str(link.query)
        key = cols[link.key] if link.key < len(cols) else str(link.key)
        table.add_row(Text(query), Text(f"→ {key}"), f"{link.weight:.2f}", f"{link.layer}.{link.head}")
    return table


def row_and_column_tokens(seen: Seen, call: Call) -> tuple[list[str], list[str]]:
    """The tokens of a call's rows and columns; a row of a decoder is labelled by the token it generates.

    Where each token attends to those before it, as in an LSTMN, the first token has no row and the last no column.
    """
    if seen.sides and call.kind == "cross":
        return seen.sides["target"], seen.sides["source"]
    if seen.sides and "decoder" in call.name:
        return seen.sides["target"], seen.sides["read"]
    tokens = seen.sides["source"] if seen.sides else (seen.tokens or [[]])[0]
    *_, queries, keys = call.shape
    if queries == keys == len(tokens) - 1:
        return tokens[1:], tokens[:-1]
    return tokens, tokens


def check_head(seen: Seen, layer: int, head: int) -> None:
    """Refuse a head that does not exist, or one too wide for a terminal."""
    if layer >= len(seen) or head >= seen[layer].heads:
        raise ValueError(f"there are {len(seen)} layers of {seen[0].heads} heads; there is no {layer}.{head}")
    longest = max(seen[layer].shape[-2:])
    if longest > MAX_TOKENS:
        raise ValueError(
            f"a head is drawn up to {MAX_TOKENS} tokens, there are {longest}; leave --layer out, and keep all with "
            "--save"
        )


def report(seen: Seen, layer: int | None, head: int, links: int) -> Iterator[RenderableType]:
    """The table of calls, the head patterns if the model read one text, the strongest links, and one head drawn.

    Calls that do not reproduce the model's output are in the table only.
    """
    yield seen
    wrong = [call.name for call in seen if call.fidelity().faithful is False]
    if wrong:
        yield Text(f"\n{', '.join(wrong)}: not what the model computed, so no pattern or link is shown", style="red")
    if seen.text is not None and not wrong:
        patterns = Patterns()
        patterns.add(seen, seen.text)
        yield ""
        yield label_table(patterns)
        yield ""
        yield best_heads_table(patterns)
    if links and not wrong:
        yield ""
        yield link_table(seen, links)
    if layer is not None:
        call = seen[layer]
        if call.name in wrong:
            yield Text(f"{call.name} is not drawn", style="red")
            return
        *_, queries, keys = call.shape
        rows, cols = row_and_column_tokens(seen, call)
        yield ""
        yield heatmap(call.head(head).tile(slice(None), slice(None)).cpu(), _pad(rows, queries), _pad(cols, keys))


def _pad(names: list[str], count: int) -> list[str]:
    """Exactly `count` labels; a search may run one step further than it keeps."""
    return [*names[:count], *("" for _ in range(count - len(names)))]
