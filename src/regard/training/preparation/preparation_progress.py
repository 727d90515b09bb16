"""Progress of preparing data, on standard error: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...noun_count import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...data import Pair

REPORT = 10.0  # seconds between lines
STEP = 1024  # pairs between two looks at the clock


@contextmanager
def progress_of(activity: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A function to be called with the number of rows that were done since the last call."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(activity, total=total)
            yield lambda rows: bar.advance(task, rows)
        return
    done, last = 0, time.monotonic()

    def advance(rows: int) -> None:
        nonlocal done, last
        done += rows
        if (now := time.monotonic()) - last >= REPORT:
            rows_so_far = count_of(done, "row") if total is None else f"{done:,} of {count_of(total, 'row')}"
            print(f"{activity}: {rows_so_far} so far", file=sys.stderr, flush=True)
            last = now

    yield advance


class CountedRows:
    """Pairs, with a progress while they are read. They may be read more than once."""

    def __init__(self, pairs: Iterable[Pair], activity: str) -> None:
        self.pairs, self.activity = pairs, activity

    def __iter__(self) -> Iterator[Pair]:
        with progress_of(self.activity) as advance:
            count = 0
            for count, pair in enumerate(self.pairs, 1):
                yield pair
                if count % STEP == 0:
                    advance(STEP)
            advance(count % STEP)
