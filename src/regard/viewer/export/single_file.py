"""Single file: the viewer and one trace as an HTML file that works without a server or a network.

The file contains the responses to the page's requests, by URL. Matrices up to a size are stored whole, in float16;
larger ones as tiles of the map, down to the level with that many cells. The page says where a response is missing.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...atomic_write import write_text
from ..data.library import Library
from ..data.trace_view import TraceView
from ..http.application import create_app
from ..http.in_process_client import request
from ..static_files import STATIC, script, styles
from .map_tiles import SIDE, array_entry, map_tiles
from .progress_line import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from ...seeing import Seen

SMALL = 32
"""Cells of the Model view's small maps (views/model.js)."""
TILES = 0.8
"""The share of the time that the tiles of a long text take."""
MOST = 1 << 28
"""Numbers of one file: half a gigabyte."""


def write(seen: Seen, path: str | Path, size: int = SIDE) -> None:
    """Write the HTML file."""
    path = Path(path)
    if not 1 <= size <= 4096:
        raise ValueError(f"size is the number of tokens, or cells, along a stored matrix: 1 to 4096, got {size}")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    trace = TraceView.of(seen)
    numbers = sum(call.heads * min(call.shape[-2], size) * min(call.shape[-1], size) for call in seen) * trace.batch
    if numbers > MOST:
        raise ValueError(f"{numbers:,} weights do not fit into one file; at most {MOST:,}: give a smaller size")
    write_text(path, _html(trace_responses(trace, size, ProgressLine(f"writing {path.name}")), trace.title))


def trace_responses(
    trace: TraceView, size: int = SIDE, progress: Callable[[float], None] = lambda share: None
) -> dict[str, Any]:
    """The responses to all that the page asks of a trace: {"json": values, "arrays": compressed arrays}, by URL.

    `progress` is called with the share that is done, from 0 to 1.
    """
    # The tiles of a long text take most of the time, and say how far they are.
    tiles = map_tiles(trace, size, lambda share: progress(TILES * share))
    app = create_app(Library([trace]))
    try:
        with ThreadPoolExecutor(1) as thread:  # in a notebook, an event loop runs already on this thread
            responses = thread.submit(asyncio.run, _responses(app, trace, size)).result()
    finally:
        app.state.jobs.close()
    responses["arrays"] |= tiles
    progress(1.0)
    return responses


def _html(responses: dict[str, Any], title: str) -> str:
    """The page. Its content security policy allows this script and no other, and no requests."""
    code = script()
    if "</script" in code.lower():
        raise ValueError("the page's script contains </script, which would end the script element")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    # HTML has no escapes inside a script element. JSON has one for <, with which </script would begin.
    data = json.dumps(responses, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
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
<div id="regard" data-source="file"></div>
<script type="application/json" id="responses">{data}</script>
<script type="module">{code}</script>
</body>
</html>
"""


async def _responses(app: FastAPI, trace: TraceView, size: int) -> dict[str, Any]:
    """{"json": values, "arrays": compressed arrays with their metadata}, by URL; all but the tiles of maps."""
    responses: dict[str, dict[str, Any]] = {"json": {}, "arrays": {}}

    async def store(url: str, options: str = "") -> None:
        while True:
            response = await request(app, "GET", url + options)
            if response.status >= 400:
                raise ValueError(json.loads(response.body)["error"])
            metadata = response.array
            if metadata is None:
                responses["json"][url] = json.loads(response.body)
                return
            if metadata.pop("computed") >= 1:
                responses["arrays"][url] = array_entry(metadata, response.body)
                return

    root = f"/api/traces/{trace.id}"
    for url in ("/api/about", "/api/traces", root):
        await store(url)
    for entry in range(trace.batch):
        if entry:
            await store(f"{root}?entry={entry}")
        for path in ("stats", "patterns"):
            await store(f"{root}/{path}?entry={entry}")
        for pool in ("max", "mean"):
            await store(f"{root}/thumbs?entry={entry}&pool={pool}&size={SMALL}")
        for at, call in enumerate(trace.seen):
            if max(call.shape[-2:]) <= size:
                await store(f"{root}/calls/{at}/weights?entry={entry}", "&type=float16")
    return responses
