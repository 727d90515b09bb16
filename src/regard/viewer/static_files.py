"""Static files of the page: scripts, style sheets and the names of the views."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
STYLES = "styles.css"
"""The name under which all style sheets are served as one."""
SCRIPT = "page.js"
"""The name under which all modules of the page are served as one, instead of a hundred requests."""


def files() -> dict[str, Path]:
    """The page's files by name. A request names one of these; the name is never used as a path."""
    return {
        path.relative_to(STATIC).as_posix(): path
        for path in sorted(STATIC.rglob("*"))
        if path.is_file() and path.suffix in MEDIA_TYPES
    }


def styles() -> str:
    """Every style sheet as one: those of the shell, of what views share, then of each view."""
    order = ["shell", "draw", "views"]
    sheets = [Path(name) for name in files() if name.endswith(".css")]
    sheets.sort(key=lambda path: (order.index(path.parts[0]), path.stem != path.parts[0], path.as_posix()))
    return "\n".join((STATIC / path).read_text(encoding="utf-8") for path in sheets)


@cache
def view_names() -> list[str]:
    """The views in the order of their tabs, from the table of the page (views/index.js)."""
    table = (STATIC / "views" / "index.js").read_text(encoding="utf-8")
    listed = re.search(r"^export const views = \[([\w\s,]+)\];", table, re.MULTILINE)
    if listed is None:
        raise ValueError("views/index.js has no line `export const views = […];`")
    return [name for name in re.split(r"[\s,]+", listed[1]) if name]
