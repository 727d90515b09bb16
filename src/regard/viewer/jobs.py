"""A worker thread with a priority queue: many browser tabs never mean many computations at once.

PyTorch already spreads one computation over all cores; two at a time would only slow each other down.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..decoding.beam import before_each_step
from . import guard
from .guard import ClientDisconnected, RequestError
from .responses import Array
from .tiles import TilePyramid

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fastapi import Request

    from .library import Library
    from .tiles import Pool, Tile
    from .traces import TraceView

HIGH, NORMAL, LAST = 0, 1, 2
"""Priorities: short computations run before long ones."""
TILE_SECONDS = 0.5
"""Seconds after which a tile is sent as far as it is computed."""
T = TypeVar("T")


class Worker:
    """`submit` returns a future; cancelled before it starts, its function is never called."""

    def __init__(self, name: str) -> None:
        self._queue: queue.PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any] | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        threading.Thread(target=self._run, name=f"regard-{name}", daemon=True).start()

    def submit(self, function: Callable[[], Any] | None, priority: int = NORMAL) -> Future[Any]:
        future: Future[Any] = Future()
        self._queue.put((priority, next(self._order), future, function))
        return future

    def close(self) -> None:
        """End the thread once the queue is empty."""
        self.submit(None, LAST)

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue that were not cancelled."""
        return sum(not future.cancelled() for _, _, future, _ in tuple(self._queue.queue))

    def _run(self) -> None:
        while True:
            _, _, future, function = self._queue.get()
            if function is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # raised again where the result is awaited
                future.set_exception(error)
            del future, function  # or the result would stay in memory until the next job


class Cache:
    """What was computed of traces, by keys that begin with the trace's id; the least recently used goes first.

    It is limited by the bytes of its values, and thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._entries: OrderedDict[tuple[Hashable, ...], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Hashable, ...]) -> Any:
        """The value; None where there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: tuple[Hashable, ...], value: Any, size: int) -> None:
        """Store a value of `size` bytes; one larger than the whole cache is not stored."""
        with self._lock:
            self._remove(key)
            if size <= self.limit:
                self._entries[key] = value, size
                self.bytes += size
            while self.bytes > self.limit:
                self._remove(next(iter(self._entries)))

    def remove_trace(self, id: str) -> None:
        with self._lock:
            for key in [key for key in self._entries if key[0] == id]:
                self._remove(key)

    def _remove(self, key: tuple[Hashable, ...]) -> None:
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]

    def __len__(self) -> int:
        return len(self._entries)


class Jobs:
    """What the routes share: the library, a worker for numbers and one for models, and a cache of what was computed."""

    def __init__(self, library: Library) -> None:
        self.library, self.cache = library, Cache(guard.MEMORY)
        self.worker, self.models = Worker("numbers"), Worker("models")
        library.on_remove = self.cache.remove_trace

    def close(self) -> None:
        self.worker.close()
        self.models.close()

    async def run(
        self, request: Request, function: Callable[[], T], priority: int = NORMAL, worker: Worker | None = None
    ) -> T:
        """Run a function on a worker and wait for its result; if the client disconnects first, it never starts."""
        future = (worker or self.worker).submit(function, priority)
        return await unless_disconnected(request, asyncio.wrap_future(future))

    async def run_model(self, request: Request, function: Callable[[], T]) -> T:
        """The same for a model, which also stops between two steps; a ValueError or OSError becomes a 422."""
        left = threading.Event()

        def stop_if_left() -> None:
            if left.is_set():
                raise ClientDisconnected

        def run() -> T:
            try:
                with before_each_step(stop_if_left):
                    return function()
            except RequestError:
                raise
            except (ValueError, OSError) as error:
                raise RequestError(422, " ".join(str(error).split())) from None

        try:
            return await self.run(request, run, worker=self.models)
        finally:
            left.set()

    def store(self, key: tuple[Hashable, ...], value: Any, size: int) -> None:
        """Cache a value as long as its trace exists: a pyramid holds the trace's queries and keys."""
        self.cache.put(key, value, size)
        if key[0] not in self.library.traces:  # checked after `put`: the trace may be removed meanwhile
            self.cache.remove_trace(str(key[0]))

    def pyramid(self, trace: TraceView, call: int, entry: int, head: int) -> TilePyramid:
        """The tile pyramid of one head, from the cache where it is there; only for the worker's thread."""
        key = trace.id, "pyramid", call, entry, head
        pyramid: TilePyramid = self.cache.get(key) or TilePyramid(trace.weights(call, entry)[head])
        self.store(key, pyramid, pyramid.nbytes)  # which grows as it is computed
        return pyramid

    async def tile(
        self, request: Request, trace: TraceView, call: int, entry: int, head: int, tile: Tile, pool: Pool, type: str
    ) -> Array:
        """A tile, from the cache or computed band by band; after `TILE_SECONDS`, as far as it is computed."""
        key = trace.id, "tile", call, entry, head, tile, pool, type

        def step(last: bool) -> Array | None:
            pyramid = self.pyramid(trace, call, entry, head)
            missing = pyramid.missing_bands(tile)
            if missing and not last:
                pyramid.pool_band(missing[0])
                return None
            note = "" if pyramid.edges(tile) == tile.edges else f"cells moved to multiples of {pyramid.block}"
            return Array(pyramid.tile(tile, pool), type, 1 - len(missing) / len(pyramid.bands(tile.rows)), note)

        array: Array | None = self.cache.get(key)
        until, last, priority = time.monotonic() + TILE_SECONDS, False, HIGH
        while array is None:
            array = await self.run(request, partial(step, last), priority)
            last = time.monotonic() > until
            priority = HIGH if last else NORMAL
        if array.status_code == 200:
            self.store(key, array, len(array.body))
        return array


async def unless_disconnected(request: Request, result: asyncio.Future[T]) -> T:
    """The result; once the client has closed the connection it is cancelled, and a ClientDisconnected raised."""
    disconnect = asyncio.ensure_future(_disconnect(request))
    both: set[asyncio.Future[Any]] = {result, disconnect}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnected
        return result.result()
    finally:
        disconnect.cancel()
        result.cancel()
        # An exception that nobody reads would be logged.
        result.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
