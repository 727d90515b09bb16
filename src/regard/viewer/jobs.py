"""A worker thread with a priority queue: many browser tabs never mean many computations at once.

PyTorch already spreads one computation over all cores; two at a time would only slow each other down.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import guard
from .guard import ClientDisconnected, RequestError
from .responses import EncodedArray
from .tiles import TilePyramid

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fastapi import Request

    from .contributions import ContributionRun
    from .library import Library
    from .tiles import Pool, Tile
    from .traces import TraceView

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
            if len(self._queue) >= guard.WAITING:
                self._queue = [job for job in self._queue if not job[2].cancelled()]
                heapq.heapify(self._queue)
            if len(self._queue) >= guard.WAITING:
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


T = TypeVar("T")
TILE_SECONDS = 0.5
"""Seconds after which a tile is sent as far as it is computed."""


class LRUCache(Generic[T]):
    """A thread-safe LRU cache that is limited by the bytes of its values."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Store a value of `size` bytes; one larger than the whole cache is not stored."""
        if size > self.limit:
            return
        with self._lock:
            self._remove(key)
            self._entries[key] = value, size
            self.bytes += size
            while self.bytes > self.limit:
                self._remove(next(iter(self._entries)))

    def remove(self, matches: Callable[[Any], bool]) -> None:
        """Remove all entries whose key matches."""
        with self._lock:
            for key in [key for key in self._entries if matches(key)]:
                self._remove(key)

    def _remove(self, key: Hashable) -> None:
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]

    def __len__(self) -> int:
        return len(self._entries)


@dataclass
class Jobs:
    """What the routes share: the library, a worker for numbers and one for models, and caches of what was computed."""

    library: Library
    worker: Worker = field(default_factory=lambda: Worker("numbers"))
    models: Worker = field(default_factory=lambda: Worker("models"))
    pyramids: LRUCache[TilePyramid] = field(default_factory=lambda: LRUCache(guard.MEMORY))
    arrays: LRUCache[EncodedArray] = field(default_factory=lambda: LRUCache(guard.MEMORY // 4))
    runs: LRUCache[ContributionRun] = field(default_factory=lambda: LRUCache(guard.RUNS))

    def __post_init__(self) -> None:
        self.library.on_remove = self._remove_trace

    def close(self) -> None:
        self.worker.close()
        self.models.close()

    async def run(
        self, request: Request, function: Callable[[], T], priority: int = NORMAL, worker: Worker | None = None
    ) -> T:
        """Run a function on a worker and wait for its result; if the client disconnects first, it never starts."""
        try:
            future = (worker or self.worker).submit(function, priority)
        except QueueFull as error:
            raise RequestError(503, str(error)) from None
        result: asyncio.Future[T] = asyncio.wrap_future(future)
        disconnect = asyncio.ensure_future(_disconnect(request))
        try:
            both: set[asyncio.Future[Any]] = {result, disconnect}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnected
            return result.result()
        finally:
            disconnect.cancel()
            future.cancel()
            result.cancel()  # or an exception that nobody reads would be logged

    async def run_model(self, request: Request, function: Callable[[], T]) -> T:
        """The same for a model, which also stops while it runs; a ValueError or OSError becomes a 422."""
        cancelled = threading.Event()

        def run() -> T:
            self.library.cancelled = cancelled
            try:
                return function()
            except RequestError:
                raise
            except (ValueError, OSError) as error:
                raise RequestError(422, " ".join(str(error).split())) from None
            finally:
                self.library.cancelled = None

        try:
            return await self.run(request, run, worker=self.models)
        finally:
            cancelled.set()

    def pyramid(self, trace: TraceView, call: int, entry: int, head: int) -> TilePyramid:
        """The tile pyramid of one head, from the cache where it is there; only for the worker's thread."""
        key = trace.id, call, entry, head
        pyramid = self.pyramids.get(key)
        if pyramid is None:
            pyramid = TilePyramid(trace.weights(call, entry)[head])
            self.store(self.pyramids, key, pyramid, pyramid.nbytes)
        return pyramid

    def store(self, cache: LRUCache[T], key: tuple[str, *tuple[Hashable, ...]], value: T, size: int) -> None:
        """Cache a value as long as its trace exists: a pyramid holds the trace's queries and keys."""
        cache.put(key, value, size)
        if key[0] not in self.library.traces:  # checked after `put`: the trace may be removed meanwhile
            self._remove_trace(key[0])

    def _remove_trace(self, id: str) -> None:
        for cache in (self.pyramids, self.arrays, self.runs):
            cache.remove(lambda key: key[0] == id)

    async def compute_row_states(
        self, request: Request, trace: TraceView, call: int, entry: int, heads: list[int], rows: range
    ) -> None:
        """Compute the row states of these heads one band at a time, so that the request can be cancelled in between."""
        for head in heads:

            def missing(head: int = head) -> tuple[TilePyramid, list[int]]:
                pyramid = self.pyramid(trace, call, entry, head)
                # Up to one band they are computed together with the weights.
                return pyramid, pyramid.bands_without_states(rows) if len(rows) > pyramid.band else []

            pyramid, bands = await self.run(request, missing)  # referenced here: the cache may drop it meanwhile
            for band in bands:
                await self.run(request, partial(pyramid.compute_states, band))

    async def tile(
        self, request: Request, trace: TraceView, call: int, entry: int, head: int, tile: Tile, pool: Pool, type: str
    ) -> EncodedArray:
        """A tile, from the cache or computed band by band; after `TILE_SECONDS`, as far as it is computed."""
        key = (trace.id, call, entry, head, tile, pool, type)
        cached = self.arrays.get(key)
        if cached is not None:
            return cached
        loop = asyncio.get_running_loop()
        until = loop.time() + TILE_SECONDS

        def step(last: bool) -> EncodedArray | None:
            pyramid = self.pyramid(trace, call, entry, head)
            missing = pyramid.missing_bands(tile)
            if missing and not last:
                pyramid.pool_band(missing[0])
                self.store(self.pyramids, (trace.id, call, entry, head), pyramid, pyramid.nbytes)
                return None
            computed = 1 - len(missing) / len(pyramid.bands(tile.rows))
            return EncodedArray.of_tile(pyramid, tile, pool, type, computed)

        array = await self.run(request, lambda: step(False), HIGH)
        while array is None:
            last = loop.time() > until
            array = await self.run(request, lambda last=last: step(last), HIGH if last else NORMAL)  # type: ignore[misc]
        if array.computed == 1:
            self.store(self.arrays, key, array, len(array.data))
        return array


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
