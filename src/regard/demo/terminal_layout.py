"""The layout of the demo: its console, sections, tables and the colour of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 80
ACCENT = "bold #159a8c"  # readable on dark and light terminals


def demo_console() -> Console:
    console = Console(markup=False, highlight=False)
    # A narrower terminal wraps the lines, which is better than tables squeezed to nothing.
    console.width = max(WIDTH, min(console.width, 100))
    return console


def section(name: str, formula: str, body: RenderableType, caption: str = "") -> RenderableType:
    rule = Rule(Text.assemble((name, ACCENT), f"   {formula}"), align="left", style="dim")
    below = ["", caption] if caption else []
    return Group(rule, Padding(Group(body, *below), (1, 0, 1, 2), expand=False))


def table(*columns: str) -> Table:
    table = Table(
        *columns,
        box=box.SIMPLE_HEAD,
        header_style="dim",
        border_style="dim",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def beside(left: RenderableType, right: RenderableType) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_row(left, right)
    return grid


def answer(text: str) -> Text:
    return Text(text, style=ACCENT)
