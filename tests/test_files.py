"""Files: written whole or not at all, with the permissions of the umask; JSON and checksums that name damage."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from regard.files import (
    CHECKSUMS,
    OWN,
    DamagedFileError,
    check_files,
    read_json,
    read_object,
    remove_unfinished,
    replacing_file,
    replacing_folder,
    write_bytes,
    write_checksums,
    write_text,
)

if TYPE_CHECKING:
    from pathlib import Path

UMASK = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupted(file: Path) -> None:
    file.write_text("half")
    raise KeyboardInterrupt


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_content_replaces_content(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "é\r\n")
    assert file.read_bytes() == b"\xc3\xa9\r\n", "UTF-8, line ends as they are"
    write_bytes(str(file), b"\x00")
    assert file.read_bytes() == b"\x00"
    assert names(tmp_path) == ["a.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    with pytest.raises(KeyboardInterrupt), replacing_file(file) as unfinished:
        interrupted(unfinished)
    assert file.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_an_error_names_the_file_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_text(tmp_path / "missing" / "a.txt", "new")
    assert error.value.filename == str(tmp_path / "missing" / "a.txt")


def test_the_reader_of_an_open_file_keeps_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    with file.open() as opened:
        write_text(file, "new")
        assert opened.read() == "old"


def test_two_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with replacing_file(file) as one, replacing_file(file) as two:
        one.write_text("one")
        two.write_text("two")
    assert file.read_text() == "one", "the last to finish"
    assert names(tmp_path) == ["a.txt"]


@UMASK
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_permissions_are_those_of_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        with replacing_file(tmp_path / "file") as unfinished:
            unfinished.unlink()  # a library may replace it with a file for the owner alone
            os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY, 0o600))
        with replacing_folder(tmp_path / "folder") as unfinished:
            os.close(os.open(unfinished / "inside", os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == mode(tmp_path / "folder" / "inside") == 0o666 & ~mask
    assert mode(tmp_path / "folder") == 0o777 & ~mask


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"
    with replacing_folder(folder) as unfinished:
        (unfinished / "old").write_text("1")
    with replacing_folder(folder) as unfinished:
        (unfinished / "deep").mkdir()
        (unfinished / "deep" / "new").write_text("2")
        assert names(folder) == ["old"], "until the new one is complete"
    assert names(folder) == ["deep"]
    assert names(tmp_path / "above") == ["folder"]


def test_an_error_leaves_the_old_folder(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "folder") as unfinished:
        (unfinished / "old").write_text("1")
    with pytest.raises(KeyboardInterrupt), replacing_folder(tmp_path / "folder") as unfinished:
        interrupted(unfinished / "new")
    assert names(tmp_path / "folder") == ["old"]
    assert names(tmp_path) == ["folder"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows makes links for administrators alone")
def test_an_interrupt_while_folders_change_places_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_text(folder / "a", "old")
    rename = type(folder).rename

    def interrupted_rename(self: Path, target: Path) -> Path:
        if target == folder and self.name.endswith(".unfinished"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(type(folder), "rename", interrupted_rename)
    with pytest.raises(KeyboardInterrupt), replacing_folder(folder) as unfinished:
        write_text(unfinished / "a", "new")
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["model"]
    assert (folder / "a").read_text() == "old"


def test_a_folder_that_a_killed_process_was_about_to_replace_is_put_back(tmp_path: Path) -> None:
    """Power was cut between the two renames, or after them."""
    for name, content in ((".data-0a1b2c3d.former", "old"), ("model", "new"), (".model-0a1b2c3d.former", "old")):
        (tmp_path / name).mkdir()
        write_text(tmp_path / name / "a", content)
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["data", "model"]
    assert [(tmp_path / name / "a").read_text() for name in ("data", "model")] == ["old", "new"]


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    write_text(tmp_path / "target", "old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "target").read_text() == "old"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "new"


def test_what_a_killed_process_left_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "a" / ".b-01ab23cd.unfinished").mkdir(parents=True)
    (tmp_path / "a" / ".b-01ab23cd.unfinished" / "c").write_text("half")
    (tmp_path / "a" / ".d.ckpt-01ab23cd.unfinished").write_text("half")
    (tmp_path / "a" / "cache-x_9z01ab.unfinished").mkdir()  # of tempfile
    write_text(tmp_path / "a" / "whole", "1")
    remove_unfinished(tmp_path)
    assert names(tmp_path / "a") == ["whole"]


def test_nobody_elses_file_is_removed_or_renamed(tmp_path: Path) -> None:
    """Those of a user whose names end alike."""
    own = ("thesis.unfinished", ".unfinished", ".notes-1.unfinished", "chapter.unfinished/text.md", ".one.former")
    for name in own:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("my own")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".e-01ab23cd.unfinished").write_text("my own")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / ".l-01ab23cd.unfinished").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    remove_unfinished(tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == [path for path in before if path.name != ".l-01ab23cd.unfinished"]
    (tmp_path / "elsewhere" / ".e-01ab23cd.unfinished").unlink()
    remove_unfinished(tmp_path)
    for name in own:
        assert (tmp_path / name).read_text() == "my own"


def test_a_json_file_holds(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, "é"]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == read_object(tmp_path / "a.json") == {"a": [1, "é"]}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"1" * 5000])
def test_a_json_file_that_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"a\.json .*; get it again"):
        read_object(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"1")
    with pytest.raises(DamagedFileError, match=r"a\.json has .* bytes; at most 0"):
        read_json(tmp_path / "a.json", largest=0)


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


@pytest.mark.parametrize("content", ["{", "{}", '{"sha256": 3}'])
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
