"""`regard cache`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from regard.commands import app


def test_the_cache_is_listed_and_cleared() -> None:
    folder = Path(os.environ["REGARD_CACHE"])
    assert "0.0 MB" in CliRunner().invoke(app, ["cache"]).output
    for kind, name in (("corpora", "a" * 40), ("vocabularies", "b" * 40)):
        (folder / kind / name).mkdir(parents=True)
        (folder / kind / name / "target.bin").write_bytes(bytes(2_000_000))
    listed = CliRunner().invoke(app, ["cache"]).output
    assert f"{folder}: 4.0 MB" in listed.replace("\n", "")
    assert "1 encoded corpora, 2.0 MB" in listed
    assert "2 removed" in CliRunner().invoke(app, ["cache", "--clear"]).output
    assert not any((folder / "corpora").iterdir())
