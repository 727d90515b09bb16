"""Static files of the page, and the bundle that tools/viewer_javascript.py makes of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".map": "application/json",
}
SCRIPT, STYLES = "bundle/page.js", "bundle/page.css"


def files() -> dict[str, Path]:
    """The page's files by name. A request names one of these; the name is never used as a path."""
    return {
        path.relative_to(STATIC).as_posix(): path
        for path in sorted(STATIC.rglob("*"))
        if path.is_file() and path.suffix in MEDIA_TYPES
    }


def script() -> str:
    """All modules as one: the page of a server, a single file or the site, and the widget (shell/entry.js)."""
    return (STATIC / SCRIPT).read_text(encoding="utf-8")


def styles() -> str:
    return (STATIC / STYLES).read_text(encoding="utf-8")


@cache
def view_names() -> list[str]:
    """The views in the order of their tabs, from the table of the page (views/index.js)."""
    table = (STATIC / "views" / "index.js").read_text(encoding="utf-8")
    listed = re.search(r"^export const views = \[([\w\s,]+)\];", table, re.MULTILINE)
    if listed is None:
        raise ValueError("views/index.js has no line `export const views = […];`")
    return [name for name in re.split(r"[\s,]+", listed[1]) if name]
