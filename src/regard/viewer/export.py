"""The viewer and one trace without a server: as an HTML file, and as a widget of a notebook.

The file contains the responses to the page's requests, by URL. Matrices up to a size are stored whole, in float16;
larger ones as tiles of the map, down to the level with that many cells. The page says where a response is missing.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import html
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets
from rich.console import Console
from rich.progress import track

from ..files import write_text
from ..seeing.patterns import row_and_column_tokens, strongest_links
from .library import Library
from .responses import STATIC, request, script, styles
from .server import create_app
from .tiles import Tile
from .trace_view import TraceView, opening

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fastapi import FastAPI

    from ..seeing.trace import Seen

SIDE = 256
"""Cells along a tile of the map (data/tiles.js)."""


def _tiles(shape: tuple[int, ...], size: int) -> list[Tile]:
    """The map's tiles of every level that has at most `size` cells along a side."""
    *_, queries, keys = shape
    longest, level = max(queries, keys), 0
    while SIDE << level < longest:
        level += 1
    tiles = []
    while level >= 0 and -(-longest >> level) <= max(size, SIDE):
        reach = SIDE << level
        for top, left in product(range(0, queries, reach), range(0, keys, reach)):
            bottom, right = min(top + reach, queries), min(left + reach, keys)
            tiles.append(Tile(top, left, bottom, right, -(-(bottom - top) >> level), -(-(right - left) >> level)))
        level -= 1
    return tiles


SMALL = 32
"""Cells of the Model view's small maps (views/model.js)."""
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
    write_text(path, _html(trace_responses(trace, size, f"writing {path.name}"), trace.title))


def trace_responses(trace: TraceView, size: int = SIDE, title: str = "") -> dict[str, Any]:
    """The responses to all that the page asks of a trace: {"json": values, "arrays": compressed arrays}, by URL.

    With a `title`, a terminal or a notebook shows how far the tiles of maps are.
    """
    library = Library([trace])
    library.opening = opening(trace)
    app = create_app(library)
    try:
        with ThreadPoolExecutor(1) as thread:  # in a notebook, an event loop runs already on this thread
            responses: dict[str, Any] = thread.submit(asyncio.run, _responses(app, trace, size, title)).result()
    finally:
        app.state.jobs.close()
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


async def _responses(app: FastAPI, trace: TraceView, size: int, title: str) -> dict[str, Any]:
    """{"json": values, "arrays": compressed arrays with their metadata}, by URL.

    Tiles are those of all calls of more than `size` tokens; of the others every weight is stored.
    """
    responses: dict[str, dict[str, Any]] = {"json": {}, "arrays": {}}

    async def store(url: str, options: str = "") -> None:
        status = 202  # a part is not computed yet
        while status == 202:
            response = await request(app, "GET", url + options)
            status = response.status
        if status >= 400:
            raise ValueError(json.loads(response.body)["error"])
        metadata = response.array
        if metadata is None:
            responses["json"][url] = json.loads(response.body)
        else:
            del metadata["computed"]
            data = base64.b64encode(gzip.compress(response.body, 6, mtime=0)).decode()
            responses["arrays"][url] = {**metadata, "data": data}

    root = f"/api/traces/{trace.id}"
    for url in ("/api/about", "/api/traces", root):
        await store(url)
    large = []
    for entry in range(trace.batch):
        if entry:
            await store(f"{root}?entry={entry}")
        for path in ("stats", "patterns"):
            await store(f"{root}/{path}?entry={entry}")
        await store(f"{root}/thumbs?entry={entry}&pool=max&size={SMALL}")
        for at, call in enumerate(trace.seen):
            if max(call.shape[-2:]) <= size:
                await store(f"{root}/calls/{at}/weights?entry={entry}", "&type=float16")
            else:
                large += [(entry, at, head) for head in range(call.heads)]
    console = Console(stderr=True)
    hidden = not (title and large and (console.is_terminal or console.is_jupyter))
    for entry, at, head in track(large, title, console=console, transient=True, disable=hidden):
        for tile in _tiles(trace.seen[at].shape, size):
            # Sorted by name, as in the keys of the page (keyOf in data/sources.js).
            parameters = sorted({**asdict(tile), "entry": entry, "head": head, "pool": "max"}.items())
            query = "&".join(f"{name}={value}" for name, value in parameters)
            await store(f"{root}/calls/{at}/tile?{query}", "&type=float16")
    return responses


def links_html(trace: TraceView) -> str:
    """What stands out in a trace, as a table that needs no script."""
    rows = []
    for link in strongest_links(trace.seen, 7) if opening(trace) else ():
        queries, keys = row_and_column_tokens(trace.seen, trace.seen[link.layer])
        words = [
            html.escape(side[at] if at < len(side) else str(at))
            for side, at in ((queries, link.query), (keys, link.key))
        ]
        figures = f"<td>{link.weight:.2f}</td><td>{link.habit:.2f}</td><td>{link.layer}.{link.head}</td>"
        rows.append(f"<tr><td>{words[0]}</td><td>→ {words[1]}</td>{figures}</tr>")
    titles = "".join(f"<th>{title}</th>" for title in ("looks", "at", "weight", "from any word here", "layer.head"))
    return f"<p>{html.escape(trace.title)}</p><table><tr>{titles}</tr>{''.join(rows)}</table>"


MOST_SAVED = 1 << 21
"""Weights of a trace up to which its data is saved with the notebook."""


class Widget(anywidget.AnyWidget):
    """Shows one trace, until it is closed.

    The data of a short trace is a part of the widget's state, which notebooks save: it is there without a kernel too.
    """

    saved = traitlets.Dict().tag(sync=True)

    def __init__(self, trace: TraceView) -> None:
        self._esm = script()
        self._css = styles()
        weights = sum(call.heads * call.shape[-2] * call.shape[-1] for call in trace.seen) * trace.batch
        super().__init__(saved=trace_responses(trace) if weights <= MOST_SAVED else {})
        self.trace = trace
        self._app = create_app(Library([trace]))
        self._open: dict[str, Future[None]] = {}  # requests, by id
        # An event loop of its own: the kernel's is busy while a cell runs, and there may be none.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="regard-widget", daemon=True)
        self._thread.start()
        self.on_msg(self._receive)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Beside the widget a table, for where no script runs: a notebook that is not trusted, or a page of one."""
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/html"] = links_html(self.trace)
        return bundle

    def _receive(self, _: Any, message: dict[str, Any], buffers: list[Any]) -> None:
        # The id is unique to a page: a notebook may show one widget in several places, and each counts from 0.
        id = message.get("id")
        if message.get("method") == "CANCEL" and id in self._open:
            self._open[id].cancel()
        elif message.get("method") != "CANCEL" and isinstance(id, str):
            self._open[id] = asyncio.run_coroutine_threadsafe(self._handle(id, message, buffers), self._loop)
            self._open[id].add_done_callback(lambda _: self._open.pop(id, None))

    async def _handle(self, id: str, message: dict[str, Any], buffers: list[Any]) -> None:
        try:
            content, arrays = await self._respond(message, buffers)
        except Exception as error:  # shown by the page: few people read a notebook's log
            content, arrays = {"error": f"{type(error).__name__}: {error}"}, []
        self.send({"id": id, **content}, arrays)

    async def _respond(self, message: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[bytes]]:
        method, path = str(message.get("method")), str(message.get("path"))
        if method not in ("GET", "POST") or not path.startswith("/api/"):
            return {"error": f"the widget accepts GET and POST of /api/…, not {method[:20]} {path[:80]}"}, []
        body = bytes(buffers[0]) if buffers else json.dumps(message.get("body")).encode() if method == "POST" else b""
        content_type = "application/octet-stream" if buffers else "application/json"
        response = await request(self._app, method, path, body, content_type)
        if response.array is not None:
            return response.array, [response.body]
        value = json.loads(response.body) if response.body else None
        return ({"error": value["error"]} if response.status >= 400 and value else {"json": value}), []

    def close(self) -> None:
        """Cancel the open requests and end the thread."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
            self._thread.join(5)
        super().close()

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._app.state.jobs.close()
        self._loop.stop()


def widget(seen: Seen) -> Widget:
    return Widget(TraceView.of(seen))
