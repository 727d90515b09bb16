"""An SVG of anything rich can print: a card of its own, readable on light and dark pages, with no font to fetch."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import TerminalTheme

if TYPE_CHECKING:
    from rich.console import RenderableType

# Rich fills in the names in braces. Its own frame keeps 40 units free on top for window buttons, which are not drawn
# here; the 48 it adds to the height in all are shared out evenly instead.
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

GROUND, LETTERS = (20, 22, 31), (222, 224, 232)  # the ground is the card's #14161f: rich blends dim letters into it
RED, GREEN, YELLOW = (255, 110, 110), (110, 220, 150), (240, 220, 130)
BLUE, MAGENTA, CYAN = (120, 170, 255), (220, 140, 230), (100, 210, 220)
THEME = TerminalTheme(GROUND, LETTERS, [GROUND, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, LETTERS])


def svg(picture: RenderableType, width: int) -> str:
    """The picture as it looks in a terminal of this many columns."""
    # Every choice is made here, none by the environment: the same picture gives the same file everywhere.
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
    console.print(picture)
    return console.export_svg(code_format=CARD, theme=THEME, font_aspect_ratio=0.6, unique_id="regard")
