"""A JSON file that may hold anything: what it holds, or an error that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.files import DamagedFileError, read_json, read_object

if TYPE_CHECKING:
    from pathlib import Path


def test_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, "é"]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == read_object(tmp_path / "a.json") == {"a": [1, "é"]}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"1" * 5000])
def test_what_it_does_not_hold(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"a\.json .*; get it again"):
        read_object(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"1")
    with pytest.raises(DamagedFileError, match=r"a\.json has .* bytes; at most 0"):
        read_json(tmp_path / "a.json", largest=0)
