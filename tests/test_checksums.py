"""A damaged file is refused by its name; an undamaged folder, and one without checksums, is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from regard.files import CHECKSUMS, OWN, DamagedFileError, check_files, write_checksums

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "deep" / "b.txt").write_text("b")
    write_checksums(tmp_path, ["a.bin", "deep/b.txt"])
    return tmp_path


def test_what_was_written_is_accepted(folder: Path) -> None:
    check_files(folder, "write it again")
    (folder / CHECKSUMS).unlink()
    (folder / "a.bin").unlink()
    check_files(folder, "write it again")  # a folder of an earlier version


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
@pytest.mark.parametrize("name", ["a.bin", "deep/b.txt"])
def test_a_damaged_file_is_named(folder: Path, name: str, damage: str) -> None:
    file = folder / name
    content = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(DamagedFileError, match=f"{name} is .*write it again"):
        check_files(folder, "write it again")
    check_files(folder, "write it again", names=[])


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "[" * 100_000, '{"sha256": 3}'])
def test_damaged_checksums_are_named(folder: Path, content: str) -> None:
    (folder / CHECKSUMS).write_text(content)
    with pytest.raises(DamagedFileError, match=f"{CHECKSUMS} .*write it again"):
        check_files(folder, "write it again")


def test_a_damaged_checksum_is_damage_of_the_list_and_not_of_the_file(folder: Path) -> None:
    file = folder / CHECKSUMS
    content = bytearray(file.read_bytes())
    at = content.index(b'"a.bin": "') + 10
    content[at] = ord("0") if content[at] != ord("0") else ord("1")
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=rf"{CHECKSUMS} is damaged: .*remove it to go on.*write it again"):
        check_files(folder, "write it again")


def test_a_list_of_an_earlier_version_has_no_checksum_of_its_own(folder: Path) -> None:
    file = folder / CHECKSUMS
    content = json.loads(file.read_text())
    del content[OWN]
    file.write_text(json.dumps(content))
    check_files(folder, "write it again")
    (folder / "a.bin").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"a\.bin is damaged"):
        check_files(folder, "write it again")
