"""A single file and a widget: they hold, and answer, what the server does."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from regard.viewer import export
from regard.viewer import tiles as tile_pyramid
from tests.support.viewer_client import app_of, get, json_of, seen_of

if TYPE_CHECKING:
    from pathlib import Path


def responses_in(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="responses">(.*?)</script>', text, re.DOTALL)
    assert match
    responses: dict[str, Any] = json.loads(match[1])
    return responses


def numbers(array: dict[str, Any]) -> torch.Tensor:
    raw = np.frombuffer(gzip.decompress(base64.b64decode(array["data"])), dtype=f"<{np.dtype(array['type']).str[1:]}")
    return torch.from_numpy(raw.astype(np.float32)).view(array["shape"])


def test_a_file_holds_every_weight(tmp_path: Path) -> None:
    seen = seen_of()
    seen.to_html(tmp_path / "page.html")
    responses, (app, root) = responses_in(tmp_path / "page.html"), app_of(seen)
    assert responses["json"][root] == json_of(get(app, root))
    for call in range(2):
        for entry in range(2):
            weights = numbers(responses["arrays"][f"{root}/calls/{call}/weights?entry={entry}"])
            torch.testing.assert_close(weights, seen[call].weights.dense()[entry], atol=1e-3, rtol=0)
    assert responses["json"][f"{root}/stats?entry=1"] == json_of(get(app, f"{root}/stats?entry=1"))


def test_a_file_of_a_long_text_holds_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_pyramid, "BASE", 128)
    seen = seen_of(length=600, heads=2, batch=2)
    seen.to_html(tmp_path / "page.html", size=300)
    responses, app = responses_in(tmp_path / "page.html"), app_of(seen)[0]
    tiles = [key for key in responses["arrays"] if "/tile?" in key]
    assert not [key for key in responses["arrays"] if "/weights?" in key]
    # Levels of at most 300 cells: cells of 4, one tile, and of 2, four. Two calls of
    # two heads and two entries.
    assert len(tiles) == 2 * 2 * 2 * (1 + 4)
    for key in tiles:
        answer = get(app, key)
        while answer.status == 202:
            answer = get(app, key)
        assert answer.status == 200
        metadata, array = answer.array, responses["arrays"][key]
        assert metadata is not None
        assert (metadata["shape"], metadata.get("note")) == (array["shape"], array.get("note"))
        weights = numbers(array)
        wanted = torch.from_numpy(np.frombuffer(answer.body, dtype="<f4").copy()).view(weights.shape)
        torch.testing.assert_close(weights, wanted, atol=1e-7, rtol=2**-10)


def test_nothing_but_the_file_is_written_where_nobody_waits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen_of(length=300, heads=1, batch=1).to_html(tmp_path / "page.html", size=200)
    assert capfd.readouterr() == ("", "")


def test_hostile_tokens_stay_inside_the_file(tmp_path: Path) -> None:
    seen = seen_of()
    nasty = ["</script><script>alert(1)</script>", "<!--", "\u2028", *["x"] * 10]
    seen.tokens, seen.model = [nasty, nasty], "<img src=x onerror=alert(1)>"
    seen.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert "alert(1)</script>" not in text
    responses = responses_in(tmp_path / "page.html")
    assert (
        next(v for k, v in responses["json"].items() if k.startswith("/api/traces/") and "?" not in k)["tokens"][0]
        == nasty
    )


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no folder"):
        seen_of().to_html(tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="1 to 4096, got 0"):
        seen_of().to_html(tmp_path / "page.html", size=0)
    monkeypatch.setattr(export, "MOST", 100)
    with pytest.raises(ValueError, match="do not fit into one file"):
        seen_of().to_html(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


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
