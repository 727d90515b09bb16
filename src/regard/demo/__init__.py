"""The demo: worked examples of attention, two translators that ship, and the training of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .terminal_layout import demo_console
from .train_with_and_without_attention import sections as training_sections
from .translation_examples import sections as translation_sections
from .worked_examples import save_examples
from .worked_examples import sections as example_sections

if TYPE_CHECKING:
    from pathlib import Path


def show(*, quick: bool = False) -> None:
    """Print the demo, each section as soon as it is computed; `quick` leaves out the training."""
    console = demo_console()
    for sections in (example_sections, translation_sections, *(() if quick else (training_sections,))):
        for section in sections():
            console.print(section)


def save(path: Path) -> None:
    """Write the sections on boxes and self-attention as SVG."""
    save_examples(path)
