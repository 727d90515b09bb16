"""The single file contains the weights and responses of the server, and nothing in a trace escapes its data."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from regard.viewer.data import tile_pyramid
from regard.viewer.data.trace_view import TraceView
from regard.viewer.export import single_file
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
    # Levels of at most 300 cells: cells of 4, one tile, and of 2, four; and a large picture. Two calls of
    # two heads and two entries, two poolings.
    assert len(tiles) == 2 * 2 * 2 * 2 * (1 + 4 + 1)
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


def test_progress_of_a_long_text_goes_up_to_one() -> None:
    shares: list[float] = []
    single_file.trace_responses(TraceView.of(seen_of(length=300, heads=3, batch=1)), 200, shares.append)
    assert shares == sorted(shares)
    assert len(shares) == 2 * 3 + 1
    assert shares[-1] == 1


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
    monkeypatch.setattr(single_file, "MOST", 100)
    with pytest.raises(ValueError, match="do not fit into one file"):
        seen_of().to_html(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
