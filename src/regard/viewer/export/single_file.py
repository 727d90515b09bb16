"""File: the viewer and one trace in a single HTML file, which works from disk with no network.

It holds the answers to what the page will ask, by the names of the questions: matrices whole up to a size, in float16;
longer ones as the tiles of the map that have so many cells. What is not in it the page says it has not.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import html
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...files import write_text
from ..data.library import Library
from ..data.trace_view import TraceView
from ..http.application import create_app
from ..http.in_process_client import request
from ..static_files import STATIC, styles
from .javascript_bundle import bundle

if TYPE_CHECKING:
    from ...seeing import Seen

SIDE = 256
"""Cells along a tile of the map (data/tiles.js)."""
SMALL, LARGE = 32, 240
"""Cells of the Model view's small maps, and of its large one (views/model/model.js)."""
MOST = 1 << 28
"""Numbers of one file: half a gigabyte."""
BEGIN = """
modules["shell/shell.js"].start(
  document.getElementById("regard"),
  new modules["data/file_source.js"].FileSource(JSON.parse(document.getElementById("held").textContent)),
  { page: true },
);
"""


def write(seen: Seen, path: str | Path, size: int = SIDE) -> None:
    """Write the HTML file."""
    path = Path(path)
    if not 1 <= size <= 4096:
        raise ValueError(f"size is how many tokens, or cells, along a matrix are kept: 1 to 4096, got {size}")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    trace = TraceView.of(seen)
    numbers = sum(call.heads * min(call.shape[-2], size) * min(call.shape[-1], size) for call in seen) * trace.batch
    if numbers > MOST:
        raise ValueError(f"{numbers:,} weights do not fit into one file; at most {MOST:,}: give a smaller size")
    write_text(path, page(held(trace, size), trace.title))


def page(held: dict[str, Any], title: str) -> str:
    """The HTML. A policy lets this script run and no other, and lets nothing be fetched."""
    script = bundle("shell/shell.js", "data/file_source.js") + BEGIN
    if "</script" in script.lower():
        raise ValueError("the page's script has </script in it, which would end it early")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Inside a script element nothing is escaped, so the one character that could end it is written as JSON can.
    data = json.dumps(held, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "media-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>
{styles()}
</style>
</head>
<body class="regard-page">
<div id="regard"></div>
<script type="application/json" id="held">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def held(trace: TraceView, size: int) -> dict[str, Any]:
    """The answers of the file, asked for one by one."""
    app = create_app(Library([trace]))
    found: dict[str, Any] = {}

    def run() -> None:  # on a thread of its own: in a notebook this one has a loop that runs already
        try:
            found.update(asyncio.run(_held(app, trace, size)))
        except BaseException as error:
            found["error"] = error
        finally:
            app.state.jobs.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if "error" in found:
        raise found["error"]
    return found


async def _held(app: Any, trace: TraceView, size: int) -> dict[str, Any]:
    holds: dict[str, dict[str, Any]] = {"json": {}, "arrays": {}}

    async def keep(path: str, asked: str | None = None) -> None:
        while True:
            answer = await request(app, "GET", asked or path)
            if answer.status >= 400:
                raise ValueError(json.loads(answer.body)["error"])
            beside = answer.array
            if beside is None:
                holds["json"][path] = json.loads(answer.body)
                return
            if beside.pop("computed") >= 1:
                packed = gzip.compress(answer.body, 6, mtime=0)
                holds["arrays"][path] = {**beside, "data": base64.b64encode(packed).decode()}
                return

    root = f"/api/traces/{trace.id}"
    for path in ("/api/about", "/api/traces", root):
        await keep(path)
    for entry in range(trace.batch):
        if entry:
            await keep(f"{root}?entry={entry}")
        for path in ("stats", "patterns"):
            await keep(f"{root}/{path}?entry={entry}")
        for pool in ("max", "mean"):
            await keep(f"{root}/thumbs?entry={entry}&pool={pool}&size={SMALL}")
        for at, call in enumerate(trace.seen):
            *_, queries, keys = call.shape
            if max(queries, keys) <= size:
                whole = f"{root}/calls/{at}/weights?entry={entry}"
                await keep(whole, f"{whole}&type=float16")
                continue
            for head in range(call.heads):
                for pool in ("max", "mean"):
                    for tile in _tiles(queries, keys, size):
                        asked = _key(f"{root}/calls/{at}/tile", {**tile, "entry": entry, "head": head, "pool": pool})
                        await keep(asked, f"{asked}&type=float16")
    return holds


def _tiles(queries: int, keys: int, size: int) -> list[dict[str, int]]:
    """The map's tiles of every level that has at most `size` cells along a side, and the Model view's large one."""
    longest, level = max(queries, keys), 0
    while SIDE << level < longest:
        level += 1
    found = [_tile(0, 0, queries, keys, min(LARGE, queries), min(LARGE, keys))]
    while level >= 0 and -(-longest >> level) <= max(size, SIDE):
        reach = SIDE << level
        for top in range(0, queries, reach):
            for left in range(0, keys, reach):
                bottom, right = min(top + reach, queries), min(left + reach, keys)
                cells = -(-(bottom - top) >> level), -(-(right - left) >> level)
                found.append(_tile(top, left, bottom, right, *cells))
        level -= 1
    return found


def _tile(top: int, left: int, bottom: int, right: int, height: int, width: int) -> dict[str, int]:
    return {"top": top, "left": left, "bottom": bottom, "right": right, "height": height, "width": width}


def _key(path: str, params: dict[str, Any]) -> str:
    """As the page names a question (keyOf in data/source.js)."""
    return f"{path}?" + "&".join(f"{name}={value}" for name, value in sorted(params.items()))
