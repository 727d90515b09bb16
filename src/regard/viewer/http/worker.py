"""A worker thread with a priority queue: many browser tabs never mean many computations at once.

PyTorch already spreads one computation over all cores; two at a time would only slow each other down.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from .. import limits

if TYPE_CHECKING:
    from collections.abc import Callable

HIGH, NORMAL, LAST = 0, 1, 2
"""Priorities: short computations run before long ones."""


class QueueFull(Exception):
    """The queue is at its limit, or the server is shutting down."""


class Worker:
    """`submit` returns a future; cancelled before it starts, its function is never called."""

    def __init__(self, name: str) -> None:
        self._queue: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []  # a heap
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"regard-{name}", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any], priority: int = NORMAL) -> Future[Any]:
        if self._closed:
            raise QueueFull("the server is shutting down")
        with self._changed:
            if len(self._queue) >= limits.WAITING:
                self._queue = [job for job in self._queue if not job[2].cancelled()]
                heapq.heapify(self._queue)
            if len(self._queue) >= limits.WAITING:
                raise QueueFull(f"{len(self._queue)} requests are waiting already; try again in a moment")
            return self._put(priority, function)

    def _put(self, priority: int, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        heapq.heappush(self._queue, (priority, next(self._order), future, function))
        self._changed.notify()
        return future

    def close(self) -> None:
        """End the thread once the queue is empty; nothing can be submitted after this."""
        self._closed = True
        with self._changed:
            self._put(LAST, _stop)

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue that were not cancelled."""
        with self._changed:
            return sum(not future.cancelled() for _, _, future, _ in self._queue)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                _, _, future, function = heapq.heappop(self._queue)
            if function is _stop:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # raised again where the result is awaited
                future.set_exception(error)
            del future, function  # or the result would stay in memory until the next job


def _stop() -> None:
    """Queued last by `close`: ends the thread."""
