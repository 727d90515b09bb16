"""The demo: what attention is, what it does for a translator, and what it learns while you watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import formulas, live_training, shipped_translators
from .demo_layout import screen

if TYPE_CHECKING:
    from pathlib import Path


def show(*, quick: bool = False) -> None:
    """Print the demo, section by section as they are computed; `quick` leaves out what trains."""
    console = screen()
    for part in (formulas, shipped_translators) if quick else (formulas, shipped_translators, live_training):
        for section in part.sections():
            console.print(section)


def save(path: Path) -> None:
    """Write the README's picture: what explains attention best, not the whole demo."""
    formulas.save(path)
