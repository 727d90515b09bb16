"""Dynamic batching: the texts of requests that arrive within a few milliseconds are computed together.

A model computes 32 sentences in little more time than one. The first text of a batch waits at most `wait` seconds for
others; while a batch is computed, the next one gathers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..counted_noun import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


LOG = logging.getLogger(__name__)


class QueueFullError(Exception):
    """There is no room for more texts now, or the thread that computes them has ended."""


class TooManyTextsError(ValueError):
    """More texts than the queue has room for when it is empty."""


@dataclass
class QueuedText:
    """A text that waits for its batch; texts with the same `settings` can share one."""

    text: str
    settings: Hashable
    result: Future[Any] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class DynamicBatches:
    """Calls `compute(texts, settings)`, which returns a result or an exception for each text, in a thread of its own.

    At most `size` texts are in a batch, and `room` in the queue. `observe` is called with the number of texts and the
    seconds of every batch. If `compute` raises an error, each text of the batch is computed alone: a text that makes
    the model fail does not fail those of other requests.
    """

    def __init__(
        self,
        compute: Callable[[list[str], Any], Sequence[Any]],
        *,
        size: int,
        wait: float,
        room: int,
        observe: Callable[[int, float], None] = lambda texts, seconds: None,
    ) -> None:
        self.compute, self.size, self.wait, self.room, self.observe = compute, size, wait, room, observe
        self._queue: deque[QueuedText] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="regard-batches", daemon=True)
        self._thread.start()

    def submit(self, texts: Sequence[str], settings: Hashable) -> list[Future[Any]]:
        """One future for each text. A QueueFullError or TooManyTextsError refuses all of them."""
        if len(texts) > self.room:
            raise TooManyTextsError(
                f"{counted(len(texts), 'text')}, and the queue of this server has room for {self.room}; send fewer"
            )
        queued = [QueuedText(text, settings) for text in texts]
        with self._changed:
            if self._closed:
                raise QueueFullError("the server is shutting down")
            if not self.alive:
                raise QueueFullError("the thread that computes batches has ended; restart the server")
            if len(self._queue) + len(queued) > self.room:
                raise QueueFullError(
                    f"the queue has {counted(len(self._queue), 'text')}, and room for {self.room}; try again soon"
                )
            self._queue.extend(queued)
            self._changed.notify()
        return [item.result for item in queued]

    @property
    def waiting(self) -> int:
        """The number of texts in the queue."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether texts are computed: False after `close`."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Compute what is in the queue, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            live = [item for item in batch if item.result.set_running_or_notify_cancel()]
            if live:
                self._compute(live)

    def _next(self) -> list[QueuedText]:
        """The next batch: the oldest text and those after it with the same settings. Empty: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return []
            first = self._queue[0]
            deadline = first.arrived + self.wait
            self._changed.wait_for(
                lambda: self._closed or self._alike(first.settings) >= self.size,
                timeout=max(0.0, deadline - time.monotonic()),
            )
            batch = [item for item in self._queue if item.settings == first.settings][: self.size]
            taken = set(map(id, batch))
            self._queue = deque(item for item in self._queue if id(item) not in taken)
            return batch

    def _alike(self, settings: Hashable) -> int:
        return sum(item.settings == settings for item in self._queue)

    def _compute(self, batch: list[QueuedText]) -> None:
        began = time.perf_counter()
        results = self._results(batch)
        try:
            self.observe(len(batch), time.perf_counter() - began)
        except Exception:
            LOG.exception("a batch was computed and not counted")
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                item.result.set_exception(result)
            else:
                item.result.set_result(result)

    def _results(self, batch: list[QueuedText]) -> list[Any]:
        """A result or an exception for each text; the exceptions are raised where the results are awaited.

        Extensions in Rust raise a BaseException when they panic. It would end this thread, and later the event loop's
        task, so it becomes a RuntimeError.
        """
        failure: Exception
        try:
            results = list(self.compute([item.text for item in batch], batch[0].settings))
            if len(results) != len(batch):
                raise RuntimeError(f"{len(batch)} texts were computed, and there are {len(results)} results")
            return results
        except Exception as error:
            failure = error
        except BaseException as error:
            failure = RuntimeError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        if len(batch) == 1:
            return [failure]
        return [result for item in batch for result in self._results([item])]
