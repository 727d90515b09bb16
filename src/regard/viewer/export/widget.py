"""Widget: the viewer in a notebook. The page sends its requests as messages, and the same HTTP API handles them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from ..data.library import Library
from ..data.trace_view import TraceView
from ..http.application import create_app
from ..http.in_process_client import request
from ..static_files import script, styles
from .single_file import trace_responses

if TYPE_CHECKING:
    from ...seeing import Seen

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
        self._cancelled: dict[str, asyncio.Event] = {}  # of the open requests, by id
        # An event loop of its own: the kernel's is busy while a cell runs, and there may be none.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="regard-widget", daemon=True)
        self._thread.start()
        self.on_msg(self._receive)

    def _receive(self, _: Any, message: dict[str, Any], buffers: list[Any]) -> None:
        asyncio.run_coroutine_threadsafe(self._handle(message, buffers), self._loop)

    async def _handle(self, message: dict[str, Any], buffers: list[Any]) -> None:
        # The id is unique to a page: a notebook may show one widget in several places, and each counts from 0.
        id = message.get("id")
        if not isinstance(id, str):
            return
        if message.get("method") == "CANCEL":
            if id in self._cancelled:
                self._cancelled[id].set()
            return
        cancelled = self._cancelled[id] = asyncio.Event()
        try:
            content, arrays = await self._respond(message, buffers, cancelled)
        except Exception as error:  # shown by the page: few people read a notebook's log
            content, arrays = {"error": f"{type(error).__name__}: {error}"}, []
        finally:
            del self._cancelled[id]
        if not cancelled.is_set():
            self.send({"id": id, **content}, arrays)

    async def _respond(
        self, message: dict[str, Any], buffers: list[Any], cancelled: asyncio.Event
    ) -> tuple[dict[str, Any], list[bytes]]:
        method, path = str(message.get("method")), str(message.get("path"))
        if method not in ("GET", "POST") or not path.startswith("/api/"):
            return {"error": f"the widget accepts GET and POST of /api/…, not {method[:20]} {path[:80]}"}, []
        body = bytes(buffers[0]) if buffers else json.dumps(message.get("body")).encode() if method == "POST" else b""
        content_type = "application/octet-stream" if buffers else "application/json"
        response = await request(self._app, method, path, body, content_type, cancelled)
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
        for cancelled in self._cancelled.values():
            cancelled.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        self._app.state.jobs.close()
        self._loop.stop()


def widget(seen: Seen) -> Widget:
    return Widget(TraceView.of(seen))
