"""Dynamic batching: the texts of requests that arrive within a few milliseconds are computed together.

A model computes 32 sentences in little more time than one. The first text of a batch waits at most `wait` seconds for
others; while a batch is computed, the next one gathers. Requests take turns.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..noun_count import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


LOG = logging.getLogger(__name__)


class QueueFullError(Exception):
    """There is no room for more texts now, or the thread that computes them has ended."""


class TooManyTextsError(ValueError):
    """More texts than the queue has room for when it is empty."""


@dataclass
class QueuedText:
    """A text that waits for its batch, and its source tokens."""

    text: str
    tokens: int = 1
    result: Future[Any] = field(default_factory=Future)


@dataclass(eq=False)
class QueuedRequest:
    """The texts of one request. Requests with the same `settings` can share a batch.

    `results` has a future for each text, in the order of the request. `waiting` are those that no batch has yet, the
    shortest first, so that a batch has little padding.
    """

    texts: list[QueuedText]
    settings: Hashable
    arrived: float = field(default_factory=time.monotonic)
    waiting: deque[QueuedText] = field(init=False)
    running_since: float | None = None  # while a batch with some of its texts is computed
    computed_tokens: int = 0
    computed_seconds: float = 0.0  # its share of the time of the batches that its texts were in

    def __post_init__(self) -> None:
        self.waiting = deque(sorted(self.texts, key=lambda item: item.tokens))

    @property
    def results(self) -> list[Future[Any]]:
        return [item.result for item in self.texts]

    @property
    def computed(self) -> int:
        """How many texts have a result."""
        return sum(item.result.done() and not item.result.cancelled() for item in self.texts)

    def larger_than(self, seconds: float) -> bool:
        """Whether a server without other requests would need more time, to judge by the texts that were computed."""
        if self.running_since is not None and 2 * (time.monotonic() - self.running_since) > seconds:
            return True
        return self.computed_seconds * sum(item.tokens for item in self.texts) > seconds * self.computed_tokens


class DynamicBatches:
    """Calls `compute(texts, settings)`, which returns a result or an exception for each text, in a thread of its own.

    At most `size` texts are in a batch, and `room` in the queue. A batch of more than one text has at most `tokens`
    source tokens, padding counted. Requests take turns, a text at a time: one that arrives while a batch of a large
    request is computed comes before the rest of that request. `observe` is called with the number of texts and the
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
        tokens: float = math.inf,
        observe: Callable[[int, float], None] = lambda texts, seconds: None,
    ) -> None:
        self.compute, self.size, self.wait, self.room, self.observe = compute, size, wait, room, observe
        self.tokens = tokens
        self._queue: deque[QueuedRequest] = deque()  # whose turn is next comes first
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="regard-batches", daemon=True)
        self._thread.start()

    def submit(self, texts: Sequence[str], settings: Hashable, lengths: Sequence[int] | None = None) -> QueuedRequest:
        """A request with a future for each text. A QueueFullError or TooManyTextsError refuses all of them.

        `lengths` are the source tokens of each text; without them each counts as one.
        """
        if len(texts) > self.room:
            raise TooManyTextsError(
                f"{count_of(len(texts), 'text')}, and the queue of this server has room for {self.room}; send fewer"
            )
        request = QueuedRequest(list(map(QueuedText, texts, lengths or [1] * len(texts))), settings)
        with self._changed:
            if self._closed:
                raise QueueFullError("the server is shutting down")
            if not self.alive:
                raise QueueFullError("the thread that computes batches has ended; restart the server")
            if self.waiting + len(texts) > self.room:
                self._remove_cancelled()
            if self.waiting + len(texts) > self.room:
                raise QueueFullError(
                    f"the server is busy: its queue has {count_of(self.waiting, 'text')}, and room for {self.room}; "
                    "try again later"
                )
            self._queue.append(request)
            self._changed.notify()
        return request

    @property
    def waiting(self) -> int:
        """The number of texts in the queue."""
        return sum(len(request.waiting) for request in list(self._queue))

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
            live = [(request, item) for request, item in batch if item.result.set_running_or_notify_cancel()]
            if live:
                self._compute(live)
            turned = dict.fromkeys(request for request, _ in batch)
            with self._changed:  # their next turn is after those that arrived meanwhile
                others = [request for request in self._queue if request not in turned]
                self._queue = deque([*others, *(request for request in turned if request.waiting)])

    def _next(self) -> list[tuple[QueuedRequest, QueuedText]]:
        """The next batch, each text with its request. Empty: the end."""
        with self._changed:
            batch: list[tuple[QueuedRequest, QueuedText]] = []
            while not batch:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return []
                left = self._queue[0].arrived + self.wait - time.monotonic()
                self._changed.wait_for(lambda: self._closed or self._full(), timeout=max(0.0, left))
                self._remove_cancelled()
                batch = self._batch()
            for request, _ in batch:
                request.waiting.popleft()
            return batch

    def _remove_cancelled(self) -> None:
        """Remove texts that nobody waits for any more, and requests without texts."""
        for request in self._queue:
            request.waiting = deque(item for item in request.waiting if not item.result.cancelled())
        self._queue = deque(request for request in self._queue if request.waiting)

    def _full(self) -> bool:
        """Whether no more texts would be added to the next batch."""
        batch = self._batch()
        alike = sum(len(request.waiting) for request in self._queue if request.settings == self._queue[0].settings)
        return len(batch) == self.size or len(batch) < alike

    def _batch(self) -> list[tuple[QueuedRequest, QueuedText]]:
        """A text of each request in turn, as long as they fit. The first in the queue decides on the settings."""
        batch: list[tuple[QueuedRequest, QueuedText]] = []
        longest = 0
        turns = deque(
            (request, iter(request.waiting)) for request in self._queue if request.settings == self._queue[0].settings
        )
        while turns and len(batch) < self.size:
            request, items = turns.popleft()
            item = next(items, None)
            if item is None or (batch and max(longest, item.tokens) * (len(batch) + 1) > self.tokens):
                continue  # the others of this request are longer still
            longest = max(longest, item.tokens)
            batch.append((request, item))
            turns.append((request, items))
        return batch

    def _compute(self, batch: list[tuple[QueuedRequest, QueuedText]]) -> None:
        began = time.monotonic()
        for request, _ in batch:
            request.running_since = began
        results = self._results([item for _, item in batch], batch[0][0].settings)
        seconds = time.monotonic() - began
        try:
            self.observe(len(batch), seconds)
        except Exception:
            LOG.exception("a batch was computed and not counted")
        for (request, item), result in zip(batch, results, strict=True):
            request.running_since = None
            request.computed_tokens += item.tokens
            request.computed_seconds += seconds / len(batch)
            if isinstance(result, Exception):
                item.result.set_exception(result)
            else:
                item.result.set_result(result)

    def _results(self, batch: list[QueuedText], settings: Hashable) -> list[Any]:
        """A result or an exception for each text; the exceptions are raised where the results are awaited.

        Extensions in Rust raise a BaseException when they panic. It would end this thread, and later the event loop's
        task, so it becomes a RuntimeError.
        """
        failure: Exception
        try:
            results = list(self.compute([item.text for item in batch], settings))
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
        return [result for item in batch for result in self._results([item], settings)]
