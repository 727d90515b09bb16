"""The demo: worked examples of attention, two translators that ship, and the training of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import train_with_and_without_attention, translation_examples, worked_examples
from .terminal_layout import demo_console

if TYPE_CHECKING:
    from pathlib import Path


def show(*, quick: bool = False) -> None:
    """Print the demo, each section as soon as it is computed; `quick` leaves out the training."""
    console = demo_console()
    for part in (worked_examples, translation_examples, *(() if quick else (train_with_and_without_attention,))):
        for section in part.sections():
            console.print(section)


def save(path: Path) -> None:
    """Write the sections on boxes and self-attention as SVG."""
    worked_examples.save(path)
