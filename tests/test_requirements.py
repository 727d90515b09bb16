"""Packages are installed by hash: every lock file is complete, and `make` installs from one wherever there is one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted((ROOT / "requirements").glob("*.txt"))
UNHASHED = {
    "--upgrade pip": "pip checks the hashes of the others",
    "--constraint constraints.txt --editable": "the index decides which wheels of torch and triton it has",
    "uv": "resolves dependencies for `make lock`; the result is read before it is committed",
}
"""What `make` installs without hashes, and why."""


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_every_requirement_is_pinned_and_has_hashes(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_make_installs_by_hash() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in re.findall(r".*pip install.*", text):
        hashed = "--require-hashes" in line
        assert hashed or any(options in line for options in UNHASHED), line
    used = set(re.findall(r"requirements/\w+\.txt", text))
    assert used == {f"requirements/{file.name}" for file in FILES}
