"""The rich console that commands print tables to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def output_console() -> Console:
    """A console for stdout; into a pipe or a file it is 200 columns wide, so that nothing is truncated or wrapped."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200
    return console
