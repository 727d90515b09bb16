"""The page as one module, one file and one widget: joined right, holding what it says, answering as the server."""

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

from regard.viewer.data import tile_pyramid
from regard.viewer.export import single_file
from tests.support.viewer_client import app_of, get, json_of, seen_of

if TYPE_CHECKING:
    from pathlib import Path


def held_in(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="held">(.*?)</script>', text, re.DOTALL)
    assert found
    held: dict[str, Any] = json.loads(found[1])
    return held


def numbers(held: dict[str, Any]) -> torch.Tensor:
    raw = np.frombuffer(gzip.decompress(base64.b64decode(held["data"])), dtype=f"<{np.dtype(held['type']).str[1:]}")
    return torch.from_numpy(raw.astype(np.float32)).view(held["shape"])


def test_a_file_holds_every_weight(tmp_path: Path) -> None:
    seen = seen_of()
    seen.to_html(tmp_path / "page.html")
    held, (app, root) = held_in(tmp_path / "page.html"), app_of(seen)
    assert held["json"][root] == json_of(get(app, root))
    for call in range(2):
        for entry in range(2):
            found = numbers(held["arrays"][f"{root}/calls/{call}/weights?entry={entry}"])
            torch.testing.assert_close(found, seen[call].weights.dense()[entry], atol=1e-3, rtol=0)
    assert held["json"][f"{root}/stats?entry=1"] == json_of(get(app, f"{root}/stats?entry=1"))


def test_a_file_of_a_long_text_holds_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_pyramid, "BASE", 128)
    seen = seen_of(length=600, heads=1, batch=1)
    seen.to_html(tmp_path / "page.html", size=300)
    held, app = held_in(tmp_path / "page.html"), app_of(seen)[0]
    tiles = [key for key in held["arrays"] if "/tile?" in key]
    assert not [key for key in held["arrays"] if "/weights?" in key]
    # Levels of at most 300 cells: cells of 4, one tile, and of 2, four; and a large picture. Two calls, two poolings.
    assert len(tiles) == 2 * 2 * (1 + 4 + 1)
    for key in tiles[:6]:
        answer = get(app, key)
        assert answer.status == 200
        found = numbers(held["arrays"][key])
        wanted = torch.from_numpy(np.frombuffer(answer.body, dtype="<f4").copy()).view(found.shape)
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)


def test_hostile_tokens_stay_inside_the_file(tmp_path: Path) -> None:
    seen = seen_of()
    nasty = ["</script><script>alert(1)</script>", "<!--", "\u2028", *["x"] * 10]
    seen.tokens, seen.model = [nasty, nasty], "<img src=x onerror=alert(1)>"
    seen.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert "alert(1)</script>" not in text
    held = held_in(tmp_path / "page.html")
    assert (
        next(v for k, v in held["json"].items() if k.startswith("/api/traces/") and "?" not in k)["tokens"][0] == nasty
    )


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no folder"):
        seen_of().to_html(tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="1 to 4096, got 0"):
        seen_of().to_html(tmp_path / "page.html", size=0)
    monkeypatch.setattr(single_file, "MOST", 100)
    with pytest.raises(ValueError, match="do not fit into one file"):
        seen_of().to_html(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


class Spoken:
    """A widget whose messages to the page are kept here instead."""

    def __init__(self) -> None:
        self.widget = seen_of().show()
        self.said: dict[str, tuple[dict[str, Any], list[bytes]]] = {}
        self.new = threading.Condition()
        self.widget.send = self.hear  # type: ignore[method-assign]

    def hear(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        with self.new:
            self.said[message["id"]] = message, buffers
            self.new.notify_all()

    def request(self, number: str, method: str, path: str, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
        self.widget._hear(None, {"id": number, "method": method, "path": path, **more}, [])
        return self.heard(number)

    def heard(self, number: str) -> tuple[dict[str, Any], list[bytes]]:
        with self.new:
            assert self.new.wait_for(lambda: number in self.said, 30)
        return self.said[number]


def test_a_widget_answers_as_the_server_does() -> None:
    spoken = Spoken()
    app, root = app_of(seen_of())
    told, _ = spoken.request("a:1", "GET", root)
    assert told["json"] == json_of(get(app, root))
    told, buffers = spoken.request("a:2", "GET", f"{root}/calls/0/weights?heads=1")
    answer = get(app, f"{root}/calls/0/weights?heads=1")
    assert (told["shape"], told["type"], buffers) == ([1, 13, 13], "float32", [answer.body])
    told, _ = spoken.request("a:3", "GET", "/api/traces/0/stats")
    assert "no trace" in told["error"]
    told, _ = spoken.request("a:4", "POST", "/api/traces", body={"model": "x", "text": "y"})
    assert "none is installed" in told["error"]
    told, _ = spoken.request("a:5", "DELETE", "/etc/passwd")
    assert "not DELETE /etc/passwd" in told["error"]
    spoken.widget._hear(None, {"id": "a:6", "method": "CANCEL"}, [])  # of nothing: no harm
    spoken.widget._hear(None, {"method": "GET", "path": root}, [])
    # Of two pages with the same number, the one that leaves is not answered, and the other is.
    go = threading.Event()
    spoken.widget._app.state.jobs.worker.submit(go.wait)
    for page in "ab":
        spoken.widget._hear(None, {"id": f"{page}:7", "method": "GET", "path": root}, [])
    spoken.widget._hear(None, {"id": "a:7", "method": "CANCEL"}, [])
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), spoken.widget._loop).result(30)
    go.set()
    told, _ = spoken.heard("b:7")
    assert told["json"]["id"] == root.split("/")[-1]
    spoken.widget.close()
    assert "a:7" not in spoken.said
    assert "export default" in spoken.widget._esm
    assert ".regard" in spoken.widget._css
