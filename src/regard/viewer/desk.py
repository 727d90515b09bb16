"""Desk: one thread that computes, the most urgent first, so that many tabs never mean many computations at once.

PyTorch spreads one computation over the cores already; two at a time would only get in each other's way.
"""

from __future__ import annotations

import itertools
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import limits

if TYPE_CHECKING:
    from collections.abc import Callable

URGENT, USUAL, LAST = 0, 1, 2
"""What is quick comes before what takes long."""


class Busy(Exception):
    """More work waits than can be done soon."""


class Desk:
    """`submit` gives a future; cancelled before its turn, nothing of it is done."""

    def __init__(self, name: str) -> None:
        self._waiting: queue.PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any]]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"regard-{name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], urgency: int = USUAL) -> Future[Any]:
        if self._closed:
            raise Busy("the server is ending")
        if self._waiting.qsize() >= limits.WAITING:
            raise Busy(f"{self._waiting.qsize()} requests wait already; ask again in a moment")
        future: Future[Any] = Future()
        self._waiting.put((urgency, next(self._order), future, work))
        return future

    def close(self) -> None:
        """End the thread when all that waits is done; there is no more after that."""
        self._closed = True
        self._waiting.put((LAST, next(self._order), Future(), _end))

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    def _work(self) -> None:
        while True:
            _, _, future, work = self._waiting.get()
            if work is _end:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # it is the asker's, wherever it waits
                future.set_exception(error)
            del future, work  # or what was computed would be held until the next


def _end() -> None:
    """What tells the thread that there is no more."""
