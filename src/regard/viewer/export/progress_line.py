"""ProgressLine: how far a long task is, as one line on the terminal that is written over."""

from __future__ import annotations

import sys
import time
from typing import TextIO

FIRST, NEXT = 1.0, 0.5
"""Seconds until the line appears, and between two of its changes."""


class ProgressLine:
    """Called with the share that is done. Nothing is written of a task that ends within a second, or to a file.

    In a notebook, whose stream is no terminal, the line is written over as well.
    """

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name, self.stream = name, sys.stderr if stream is None else stream
        self.time = time.monotonic() + FIRST
        self.written = False
        self.visible = self.stream.isatty() or type(self.stream).__module__.startswith("ipykernel.")

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if not self.visible or (now < self.time and not (self.written and share >= 1)):
            return
        self.time, self.written = now + NEXT, True
        self.stream.write(f"\r{self.name}: {100 * share:.0f} %" + ("\n" if share >= 1 else ""))
        self.stream.flush()
