"""The notebook widget responds as the server does."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.support.viewer_client import app_of, get, json_of, seen_of


class Messages:
    """A widget whose messages to the page are collected."""

    def __init__(self) -> None:
        self.widget = seen_of().show()
        self.received: dict[str, tuple[dict[str, Any], list[bytes]]] = {}
        self.changed = threading.Condition()
        self.widget.send = self.send  # type: ignore[method-assign]

    def send(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        with self.changed:
            self.received[message["id"]] = message, buffers
            self.changed.notify_all()

    def request(self, number: str, method: str, path: str, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
        self.widget._receive(None, {"id": number, "method": method, "path": path, **more}, [])
        return self.wait(number)

    def wait(self, number: str) -> tuple[dict[str, Any], list[bytes]]:
        with self.changed:
            assert self.changed.wait_for(lambda: number in self.received, 30)
        return self.received[number]


def test_a_widget_answers_as_the_server_does() -> None:
    messages = Messages()
    app, root = app_of(seen_of())
    content, _ = messages.request("a:1", "GET", root)
    assert content["json"] == json_of(get(app, root))
    content, buffers = messages.request("a:2", "GET", f"{root}/calls/0/weights?heads=1")
    answer = get(app, f"{root}/calls/0/weights?heads=1")
    assert (content["shape"], content["type"], buffers) == ([1, 13, 13], "float32", [answer.body])
    content, _ = messages.request("a:3", "GET", "/api/traces/0/stats")
    assert "no trace" in content["error"]
    content, _ = messages.request("a:4", "POST", "/api/traces", body={"model": "x", "text": "y"})
    assert "none is installed" in content["error"]
    content, _ = messages.request("a:5", "DELETE", "/etc/passwd")
    assert "not DELETE /etc/passwd" in content["error"]
    messages.widget._receive(None, {"id": "a:6", "method": "CANCEL"}, [])  # of nothing: no harm
    messages.widget._receive(None, {"method": "GET", "path": root}, [])
    # Of two pages with the same number, the one that leaves is not answered, and the other is.
    go = threading.Event()
    messages.widget._app.state.jobs.worker.submit(go.wait)
    for page in "ab":
        messages.widget._receive(None, {"id": f"{page}:7", "method": "GET", "path": root}, [])
    messages.widget._receive(None, {"id": "a:7", "method": "CANCEL"}, [])
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), messages.widget._loop).result(30)
    go.set()
    content, _ = messages.wait("b:7")
    assert content["json"]["id"] == root.split("/")[-1]
    messages.widget.close()
    assert "a:7" not in messages.received
    assert "as default}" in messages.widget._esm
    assert ".regard" in messages.widget._css
