"""Reading JSON files that may hold anything: every error names the file and says what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 16 << 20
"""The maximum size of a file, in bytes."""


class DamagedFileError(ValueError):
    """A file that is not what was written: its name, and what to do."""


def read_json(file: Path, advice: str = "get it again", largest: int = LARGEST) -> Any:
    """What a JSON file holds."""
    size = file.stat().st_size
    if size > largest:
        raise DamagedFileError(f"{file} has {size:,} bytes; at most {largest:,} are read; {advice}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(f"{file} is not JSON: {reason}; {advice}") from None


def read_object(file: Path, advice: str = "get it again", largest: int = LARGEST) -> dict[str, Any]:
    """The JSON object in a file."""
    value = read_json(file, advice, largest)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{file} holds a {type(value).__name__}; it should be a JSON object; {advice}")
    return value
