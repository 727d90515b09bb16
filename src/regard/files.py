"""Who may read what was written. It stands in this room because every other may import from it."""

from __future__ import annotations

import os
from stat import S_IMODE
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def as_umask_says(path: Path) -> None:
    """Let those read a file or a folder who may read what this process writes otherwise.

    `tempfile` and safetensors make theirs for the owner alone, whatever the umask says.
    """
    mask = os.umask(0o077)  # it cannot be asked without being set; what a thread makes meanwhile is its owner's alone
    os.umask(mask)
    path.chmod(S_IMODE(path.stat().st_mode) | (0o777 if path.is_dir() else 0o666) & ~mask)
