"""Checksums: `checksums.json` in a folder has the SHA-256 of files beside it, and a damaged file is refused by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .atomic_write import write_text
from .json_file import DamagedFileError, read_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .atomic_write import AnyPath

CHECKSUMS = "checksums.json"


def sha256(path: AnyPath) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write `checksums.json` for these files, named relative to the folder."""
    values = {name: sha256(folder / name) for name in sorted(names)}
    write_text(folder / CHECKSUMS, json.dumps({"sha256": values}, indent=1) + "\n")


def check_files(folder: Path, advice: str, names: Iterable[str] | None = None) -> None:
    """Raise a DamagedFileError that names the first file that is missing or is not what was written.

    Checks `names`, by default all that are listed. A folder without `checksums.json`, written by an earlier version,
    is not checked.
    """
    file = folder / CHECKSUMS
    if not file.is_file():
        return
    expected = read_object(file, advice).get("sha256")
    if not isinstance(expected, dict):
        raise DamagedFileError(f"{file} is damaged: it has no sha256; {advice}")
    for name, digest in expected.items():
        if names is None or name in names:
            check_file(folder / name, digest, advice)


def check_file(path: Path, digest: object, advice: str) -> None:
    """Raise a DamagedFileError where a file is missing or has another SHA-256."""
    if not path.is_file():
        raise DamagedFileError(f"{path} is missing; {advice}")
    actual = sha256(path)
    if actual != digest:
        raise DamagedFileError(
            f"{path} is damaged: its SHA-256 is {actual[:12]}…, and {str(digest)[:12]}… was written; {advice}"
        )
