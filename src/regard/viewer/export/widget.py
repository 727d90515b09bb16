"""Widget: the viewer in a notebook. The page's questions come as messages, and the same API answers them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import anywidget

from ..data.library import Library
from ..data.trace_view import TraceView
from ..http.application import create_app
from ..http.in_process_client import request
from ..static_files import styles
from .javascript_bundle import bundle

if TYPE_CHECKING:
    from ...seeing import Seen

RENDER = """
export default {
  async render({ model, el }) {
    const source = new modules["data/widget_source.js"].WidgetSource(model);
    const root = document.createElement("div");
    root.className = "regard-widget";
    el.append(root);
    const end = await modules["shell/shell.js"].start(root, source, { page: false });
    return () => {
      end();
      source.close();
    };
  },
};
"""


class Widget(anywidget.AnyWidget):
    """Shows one trace; lives as long as somebody holds it."""

    def __init__(self, trace: TraceView) -> None:
        self._esm = bundle("shell/shell.js", "data/widget_source.js") + RENDER
        self._css = styles()
        super().__init__()
        self.trace = trace
        self._app = create_app(Library([trace]))
        self._asked: dict[str, asyncio.Event] = {}
        # A loop of our own: the kernel's is busy while a cell runs, and there may be none.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="regard-widget", daemon=True)
        self._thread.start()
        self.on_msg(self._hear)

    def _hear(self, _: Any, message: dict[str, Any], buffers: list[Any]) -> None:
        asyncio.run_coroutine_threadsafe(self._answer(message, buffers), self._loop)

    async def _answer(self, message: dict[str, Any], buffers: list[Any]) -> None:
        # A page's own name and its number: a notebook may show one widget in several places, and each counts from 0.
        number = message.get("id")
        if not isinstance(number, str):
            return
        if message.get("method") == "CANCEL":
            if number in self._asked:
                self._asked[number].set()
            return
        gone = self._asked[number] = asyncio.Event()
        try:
            told, numbers = await self._told(message, buffers, gone)
        except Exception as error:  # the page shows it; a notebook's log is seen by nobody
            told, numbers = {"error": f"{type(error).__name__}: {error}"}, []
        finally:
            del self._asked[number]
        if not gone.is_set():
            self.send({"id": number, **told}, numbers)

    async def _told(
        self, message: dict[str, Any], buffers: list[Any], gone: asyncio.Event
    ) -> tuple[dict[str, Any], list[bytes]]:
        method, path = str(message.get("method")), str(message.get("path"))
        if method not in ("GET", "POST") or not path.startswith("/api/"):
            return {"error": f"the widget answers GET and POST of /api/…, not {method[:20]} {path[:80]}"}, []
        body = bytes(buffers[0]) if buffers else json.dumps(message.get("body")).encode() if method == "POST" else b""
        kind = "application/octet-stream" if buffers else "application/json"
        answer = await request(self._app, method, path, body, kind, gone)
        array = answer.array
        if array is not None:
            return array, [answer.body]
        value = json.loads(answer.body) if answer.body else None
        return ({"error": value["error"]} if answer.status >= 400 and value else {"json": value}), []

    def close(self) -> None:
        """End it: the page is gone and nothing computes for it any more."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._thread.join(5)
        super().close()

    async def _end(self) -> None:
        for gone in self._asked.values():
            gone.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        self._app.state.jobs.close()
        self._loop.stop()


def widget(seen: Seen) -> Widget:
    return Widget(TraceView.of(seen))
