"""SVG images of rich output, readable on light and dark pages, without web fonts."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import TerminalTheme

if TYPE_CHECKING:
    from rich.console import RenderableType

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
