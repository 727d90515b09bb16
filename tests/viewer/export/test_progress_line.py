"""The line of progress: none for short tasks and files, one that ends for long tasks on a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from regard.viewer.export import progress_line
from regard.viewer.export.progress_line import ProgressLine

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_task_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 1.2, 1.3, 2.0, 2.1])
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: next(clock))
    terminal = Terminal()
    line = ProgressLine("writing page.html", terminal)
    for share in (0.1, 0.25, 0.3, 0.9, 1.0):
        line(share)
    assert terminal.getvalue() == "\rwriting page.html: 25 %\rwriting page.html: 90 %\rwriting page.html: 100 %\n"


class Cell(io.StringIO):
    """The output of a notebook's cell."""

    __module__ = "ipykernel.iostream"


def test_a_long_task_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "FIRST", -1.0)
    cell = Cell()
    ProgressLine("writing page.html", cell)(0.5)
    assert cell.getvalue() == "\rwriting page.html: 50 %"


def test_nothing_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    ProgressLine("short", terminal)(1.0)
    monkeypatch.setattr(progress_line, "FIRST", -1.0)
    ProgressLine("to a file", file)(0.5)
    assert terminal.getvalue() == file.getvalue() == ""
