"""Checksums: `checksums.json` in a folder has the SHA-256 of files beside it, and a damaged file is refused by name.

`checksums.json` has a SHA-256 of its own content too. Without it, a flipped bit in a checksum would look like damage of
the file that it belongs to.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .atomic_write import write_text
from .json_file import DamagedFileError, read_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .atomic_write import AnyPath

CHECKSUMS = "checksums.json"
OWN = "own_sha256"
"""The key of the SHA-256 of the other content of `checksums.json`."""


def sha256(path: AnyPath) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_list(file: Path, content: dict[str, Any]) -> None:
    """Write a list of checksums, with the SHA-256 of the list itself."""
    write_text(file, json.dumps({**content, OWN: _content_sha256(content)}, indent=1) + "\n")


def read_list(file: Path, advice: str) -> dict[str, Any]:
    """Read what `write_list` wrote; a DamagedFileError where it is damaged. Earlier versions did not write `OWN`."""
    content = read_object(file, advice)
    stated = content.pop(OWN, None)
    if stated is not None and stated != _content_sha256(content):
        raise DamagedFileError(f"{file} is damaged: its content does not have the SHA-256 that it states; {advice}")
    return content


def _content_sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write `checksums.json` for these files, named relative to the folder."""
    write_list(folder / CHECKSUMS, {"sha256": {name: sha256(folder / name) for name in sorted(names)}})


def check_files(folder: Path, advice: str, names: Iterable[str] | None = None) -> None:
    """Raise a DamagedFileError that names the first file that is missing or is not what was written.

    Checks `names`, by default all that are listed. A folder without `checksums.json`, written by an earlier version,
    is not checked.
    """
    file = folder / CHECKSUMS
    if not file.is_file():
        return
    own_advice = f"remove it to go on without comparing checksums, or {advice}"
    expected = read_list(file, own_advice).get("sha256")
    if not isinstance(expected, dict):
        raise DamagedFileError(f"{file} is damaged: it has no sha256; {own_advice}")
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
