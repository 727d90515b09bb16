"""Progress of a training run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.progress import TaskID

QUIET = 10.0  # seconds between lines where the output is no terminal


class ProgressBar:
    """Shows nothing on processes other than the first."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.console = Console(highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._updates = 0
        self._said = 0.0  # when the last line was

    def say(self, line: str) -> None:
        if self.shown:
            self.console.print(line, markup=False, soft_wrap=True)
            self._said = time.monotonic()

    def start(self, done: int, updates: int) -> None:
        self._updates, self._said = updates, time.monotonic()
        if self.shown and self.console.is_terminal:
            columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"))
            self._bar = Progress(*columns, console=self.console)
            self._task = self._bar.add_task("", total=updates, completed=done, figures="")
            self._bar.start()

    def move(self, done: int, figures: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, figures=figures)
        elif self.is_due:
            self.say(f"update {done:,} of {self._updates:,}: {figures.strip()}")

    @property
    def is_due(self) -> bool:
        """Whether `move` would print a line; always False in a terminal, which has the bar."""
        return self.shown and self._bar is None and time.monotonic() - self._said >= QUIET

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
