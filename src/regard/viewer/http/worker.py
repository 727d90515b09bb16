"""Worker: one thread that computes, the most urgent first, so that many tabs never mean many computations at once.

PyTorch spreads one computation over the cores already; two at a time would only get in each other's way.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import limits

if TYPE_CHECKING:
    from collections.abc import Callable

URGENT, USUAL, LAST = 0, 1, 2
"""What is quick comes before what takes long."""


class QueueFull(Exception):
    """More work waits than can be done soon."""


class Worker:
    """`submit` gives a future; cancelled before its turn, nothing of it is done."""

    def __init__(self, name: str) -> None:
        self._waiting: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []  # a heap
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"regard-{name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], urgency: int = USUAL) -> Future[Any]:
        if self._closed:
            raise QueueFull("the server is ending")
        with self._changed:
            if len(self._waiting) >= limits.WAITING:
                self._waiting = [one for one in self._waiting if not one[2].cancelled()]
                heapq.heapify(self._waiting)
            if len(self._waiting) >= limits.WAITING:
                raise QueueFull(f"{len(self._waiting)} requests wait already; ask again in a moment")
            return self._put(urgency, work)

    def _put(self, urgency: int, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        heapq.heappush(self._waiting, (urgency, next(self._order), future, work))
        self._changed.notify()
        return future

    def close(self) -> None:
        """End the thread when all that waits is done; there is no more after that."""
        self._closed = True
        with self._changed:
            self._put(LAST, _end)

    @property
    def waiting(self) -> int:
        """Those somebody still waits for."""
        with self._changed:
            return sum(not future.cancelled() for _, _, future, _ in self._waiting)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                _, _, future, work = heapq.heappop(self._waiting)
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
