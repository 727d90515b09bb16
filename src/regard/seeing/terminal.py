"""What the terminal shows: heatmaps, shaded words, bars, progress; and tables of results."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.measure import Measurement
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from ..files import check_table_path, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from jaxtyping import Float
    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from torch import Tensor

T = TypeVar("T")

# From dark blue to yellow. Lightness increases throughout, so the order is visible to colour-blind readers and in grey.
RAMP = ((24, 28, 66), (38, 76, 128), (30, 128, 142), (72, 178, 116), (180, 210, 76), (253, 231, 130))
ANSI_RAMP = (17, 18, 24, 30, 36, 78, 114, 150, 186, 229)  # nearly the same, for terminals of 256 colours
SHADES = " ░▒▓█"
NARROW = 2  # characters of a cell without a number: about as wide as it is high
ROW_LABEL, COLUMN_LABEL = 14, 8  # characters; longer labels are truncated


def heatmap(weights: Float[Tensor, "rows cols"], rows: Sequence[str], cols: Sequence[str]) -> Heatmap:
    """Weights ≥ 0 as a heatmap that rich prints, scaled to the largest; a weight of exactly 0 is a dot.

    Cells show their number if the terminal is wide enough. Without colours (NO_COLOR, a pipe, a terminal of 16
    colours) they are shaded ░▒▓█. Pool a matrix that is wider than the terminal first, with `Weights.map`.
    """
    shape = tuple(weights.shape)
    if shape != (len(rows), len(cols)) or 0 in shape:
        raise ValueError(
            f"a heatmap needs weights [rows, cols] and a label for each row and column: the weights are {list(shape)}, "
            f"with {len(rows)} and {len(cols)} labels"
        )
    cells: list[list[float]] = weights.tolist()
    # `not 0 <= x`, so that NaN is found too.
    wrong = [cell for row in cells for cell in row if not 0 <= cell < float("inf")]
    if wrong:
        raise ValueError(f"a heatmap draws finite weights ≥ 0, got {wrong[0]}")
    return Heatmap(cells, [_label(name, ROW_LABEL) for name in rows], [_label(name, COLUMN_LABEL) for name in cols])


@dataclass(frozen=True, slots=True)
class Heatmap:
    """A renderable of rich; `heatmap` makes it."""

    cells: list[list[float]]
    rows: list[str]
    cols: list[str]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self._total(NARROW), self._total(self._width(options.max_width)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = self._width(options.max_width)
        colours = None if console.no_color else console.color_system
        peak = max(map(max, self.cells)) or 1.0
        lines = self._header(width)
        for name, row in zip(self.rows, self.cells, strict=True):
            lines.append(Text.assemble(self._row_label(name), *(_cell(cell, peak, width, colours) for cell in row)))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line

    def _row_label(self, name: str) -> Text:
        margin = Text(name)
        margin.align("right", max(map(cell_len, self.rows)))
        return margin.append(" ")

    def _width(self, room: int) -> int:
        """The width of a cell, with its number if that fits."""
        # A shade, a space, the number and a space; labels may need more.
        number = max(len(f"{cell:.2f}") for row in self.cells for cell in row)
        wide = max(3 + number, 1 + max(map(cell_len, self.cols)))
        return wide if self._total(wide) <= room else NARROW

    def _total(self, width: int) -> int:
        return self._row_label("").cell_len + width * len(self.cols)

    def _header(self, width: int) -> list[Text]:
        if width > NARROW:
            names = [Text(name) for name in self.cols]
            for name in names:
                name.align("center", width)
            return [Text.assemble(self._row_label(""), *names)]
        # Too narrow for words: labels are written vertically, one letter per line.
        height = max(map(len, self.cols))
        vertical = zip(*(name.rjust(height) for name in self.cols), strict=True)
        return [Text.assemble(self._row_label(""), *(set_cell_size(x, width) for x in letters)) for letters in vertical]


def cell_style(share: float, colours: str | None) -> Style | None:
    """Background and text colour for a share of the largest weight; None if the terminal has too few colours."""
    if colours == "truecolor":
        at = share * (len(RAMP) - 1)
        below = min(int(at), len(RAMP) - 2)
        pairs = zip(RAMP[below], RAMP[below + 1], strict=True)
        colour = Color.from_rgb(*(round(low + (high - low) * (at - below)) for low, high in pairs))
    elif colours == "256":
        colour = Color.from_ansi(ANSI_RAMP[round(share * (len(ANSI_RAMP) - 1))])
    else:
        return None
    # The text colour is set too, so that the terminal's theme does not matter.
    letters = Color.from_ansi(231 if luminance(colour) < 0.25 else 16)  # white, black
    return Style(color=letters, bgcolor=colour)


def _cell(cell: float, peak: float, width: int, colours: str | None) -> Text:
    style = cell_style(cell / peak, colours)
    if cell == 0:
        return Text("·".center(width), style="" if style is None else "dim")
    number = f"{cell:.2f}" if width > NARROW else ""
    if style is not None:
        return Text(number.center(width), style=style)
    number = f" {number} " if number else ""
    return Text(_shade(cell / peak) * (width - len(number)) + number)


def _shade(share: float) -> str:
    return SHADES[round(share * (len(SHADES) - 1))]


def luminance(colour: Color) -> float:
    """Relative luminance, 0 to 1 (sRGB coefficients; gamma is approximated by a square)."""
    red, green, blue = ((part / 255) ** 2 for part in colour.get_truecolor())
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def printable(name: str) -> str:
    """The name with line breaks and other unprintable characters replaced by dots."""
    return "".join(letter if letter.isprintable() else "·" for letter in name)


def _label(name: str, width: int) -> str:
    text = Text(printable(name))
    text.truncate(width, overflow="ellipsis")
    return text.plain


# Rich fills in the names in braces. It adds 48 units to the height, 40 of them at the top for window buttons; these are
# not drawn here, so the space is divided evenly.
CARD = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font: {char_height}px/{line_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}}
{styles}
</style>
<defs>{lines}</defs>
<rect width="100%" height="100%" rx="12" fill="#14161f"/>
<g transform="translate(9, 24)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""

BACKGROUND, TEXT = (20, 22, 31), (222, 224, 232)  # the background is #14161f, into which rich blends dim text
RED, GREEN, YELLOW = (255, 110, 110), (110, 220, 150), (240, 220, 130)
BLUE, MAGENTA, CYAN = (120, 170, 255), (220, 140, 230), (100, 210, 220)
THEME = TerminalTheme(BACKGROUND, TEXT, [BACKGROUND, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, TEXT])


def to_svg(renderable: RenderableType, width: int) -> str:
    """The SVG of what rich prints in a terminal of this many columns."""
    # Every option is set here and none by the environment, so that the file is the same everywhere.
    console = Console(
        width=width,
        record=True,
        file=StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        markup=False,
        highlight=False,
    )
    console.print(renderable)
    return console.export_svg(code_format=CARD, theme=THEME, font_aspect_ratio=0.6, unique_id="regard")


BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class ShadedText:
    """Words and their weights ≥ 0; the largest is the brightest. Without colours its weight follows each word."""

    words: Sequence[str]
    weights: Sequence[float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colours = None if console.no_color else console.color_system
        peak = max(self.weights, default=0) or 1.0
        if cell_style(1.0, colours) is None:
            yield Text("  ".join(f"{printable(x)} {w:.2f}" for x, w in zip(self.words, self.weights, strict=True)))
            return
        line = Text()
        for word, weight in zip(self.words, self.weights, strict=True):
            line.append(f" {printable(word)} ", cell_style(weight / peak, colours) or "")
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


def progress(parts: Sequence[T], title: str) -> Iterable[T]:
    """The parts, with a bar on standard error where that is a terminal."""
    if len(parts) < 2 or not sys.stderr.isatty():
        return parts
    from rich.progress import track  # slow to import

    return track(parts, title, console=Console(stderr=True))


class ResultTable:
    """Columns by name; `to_frame()` gives a pandas or polars data frame, `save(path)` writes CSV or Parquet."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = {name: list(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a table have one length, got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def to_frame(self) -> Any:
        """A pandas data frame if pandas is installed, otherwise one of polars."""
        for package in ("pandas", "polars"):
            if find_spec(package) is not None:
                return import_module(package).DataFrame(self.columns)
        raise ImportError("a data frame needs pandas or polars; install one (pip install pandas), or save a CSV file")

    def save(self, path: str | Path) -> None:
        """Write .csv, or .parquet with pyarrow."""
        path = check_table_path(path)
        if path.suffix == ".csv":
            write_text(path, self.to_csv())
        elif find_spec("pyarrow") is None:
            raise ImportError("Parquet needs pyarrow; install it (pip install pyarrow), or save a CSV file")
        else:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table(self.columns), path)

    def to_csv(self) -> str:
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*self.columns.values(), strict=True))
        return text.getvalue()


class Tabular:
    """What has a table."""

    def table(self) -> ResultTable:
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The table as a data frame of pandas or polars."""
        return self.table().to_frame()

    def save(self, path: str | Path) -> None:
        """Write the table to .csv or .parquet."""
        self.table().save(path)
