"""`regard serve` as it is typed: what it prints, and what it refuses before it listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `view`")

from typer.testing import CliRunner

from regard.commands import app
from regard.viewer.server import AppServer
from tests.support.small_translators import save_exported_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = "phrasebook-bahdanau-en-fr"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command, with a server that ends at once."""
    monkeypatch.setattr(AppServer, "run", lambda self, ready=None: self._socket.close())
    monkeypatch.delenv("REGARD_TOKEN", raising=False)
    return lambda *arguments, **env: CliRunner().invoke(app, ["serve", *arguments, "--device", "cpu"], env=env)


def test_it_prints_its_address_and_a_new_token(serve: Callable[..., Any]) -> None:
    printed = serve(MODEL, "--port", "0").output.splitlines()
    assert printed[0].startswith("regard serve: http://127.0.0.1:")
    assert printed[0].endswith("/translate")
    assert printed[1].startswith("Authorization: Bearer ")
    assert len(printed[1]) > 40


def test_it_serves_what_was_exported_for_ctranslate2(serve: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra `export`")
    run = save_exported_run(tmp_path / "run")
    for folder in (run, run / "ctranslate2"):
        result = serve(str(folder), "--port", "0", "--engine", "ctranslate2")
        assert not result.exception
        assert result.output.splitlines()[0].endswith("/translate")


def test_a_token_of_ones_own_is_not_printed(serve: Callable[..., Any]) -> None:
    output = serve(MODEL, "--port", "0", REGARD_TOKEN="my-secret").output
    assert "token: that of REGARD_TOKEN" in output
    assert "my-secret" not in output


def test_other_machines_need_a_token(serve: Callable[..., Any]) -> None:
    result = serve(MODEL, "--host", "0.0.0.0", "--port", "0", "--no-token")
    assert result.exit_code
    assert "without a token everybody who can reach 0.0.0.0 could use it" in str(result.exception)
