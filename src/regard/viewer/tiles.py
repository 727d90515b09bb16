"""Tiles of one head's matrix at any zoom, without storing the matrix; and the worker and the cache behind every route.

Fine tiles are computed from q, k and the row state when they are requested. A coarse tile needs every weight under it,
up to 131,072² of them, so one pass over the matrix pools them into a base level of cells of `block` × `block` weights
(at most `BASE` cells along a side), and coarser cells are pooled from these: the maximum of maxima, the mean of sums.
Both are exact. The pass runs band by band, the rows of the requested tile first, and stops once no request waits.

One thread computes, by priority: many browser tabs never mean many computations at once. PyTorch already
spreads one computation over all cores; two at a time would only slow each other down.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from ..attention.statistics import Cells
from ..decoding.beam import before_each_step
from . import guard
from .guard import ClientDisconnected, RequestError
from .responses import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fastapi import Request
    from jaxtyping import Bool, Float
    from torch import Tensor

    from ..attention.weights import Weights
    from .library import Library
    from .trace_view import TraceView

Pool = Literal["max", "mean"]


@dataclass(frozen=True)
class Tile:
    """A rectangle of the matrix, and the number of cells it is pooled to.

    Where cells of a power of two give that number, they are used, the last one smaller; else cell r of R covers rows
    r·T//R up to (r+1)·T//R of the T rows, as in `Weights.map`.
    """

    top: int
    left: int
    bottom: int
    right: int
    height: int
    width: int

    @property
    def rows(self) -> range:
        return range(self.top, self.bottom)

    @property
    def cols(self) -> range:
        return range(self.left, self.right)

    @cached_property
    def edges(self) -> tuple[list[int], list[int]]:
        """Where the cells begin, and where the last one ends; for rows and columns."""
        return _edges(self.rows, self.height), _edges(self.cols, self.width)


def _edges(span: range, count: int) -> list[int]:
    size = 1
    while size * count < len(span):
        size *= 2
    if -(-len(span) // size) == count:
        return [*span[::size], span.stop]
    return [span.start + edge for edge in Cells.edges(len(span), count)]


def as_slice(x: range, block: int = 1) -> slice:
    """The positions of a range, or the blocks of this size that they lie in."""
    return slice(x.start // block, -(-x.stop // block))


BASE = 2048
"""Cells along the longer side of the base level."""
CHUNK = 1 << 19
"""Weights pooled at once: 2 MiB, which stay in cache."""
TALL = 512
"""Queries pooled at once."""
BAND = 1 << 23
"""Weights of one band of the pass: some 30 ms of work, after which a more urgent job can run."""


class TilePyramid:
    """The tiles of one head of one batch entry. Not thread-safe."""

    def __init__(self, weights: Weights) -> None:
        """`weights` of shape [T_q, T_k]."""
        self.weights = weights
        self.queries, self.keys, self._device = *weights.shape, weights.device
        self.block = 1
        while max(self.queries, self.keys) > BASE * self.block:
            self.block *= 2
        self.band = self.block * max(1, BAND // (self.keys * self.block))
        """Queries of one band."""
        self.pooled: Bool[Tensor, " bands"] = torch.zeros(-(-self.queries // self.band), dtype=torch.bool)
        """Which bands are in the base level."""

    @property
    def nbytes(self) -> int:
        base = self._base.values() if "_base" in self.__dict__ else ()
        return 4 * self.queries + sum(x.nbytes for x in base)  # beside q and k, which the trace has

    @cached_property
    def _base(self) -> dict[str, Float[Tensor, "high wide"]]:
        """ "max": the maxima, "mean": the sums; made when a coarse tile is asked for."""
        size = -(-self.queries // self.block), -(-self.keys // self.block)
        return {pool: torch.zeros(size, device=self._device) for pool in ("max", "mean")}

    # Bands

    def bands(self, rows: range) -> range:
        """The bands that these rows lie in."""
        return range(rows.start // self.band, -(-rows.stop // self.band))

    def missing_bands(self, tile: Tile) -> list[int]:
        """The bands to pool before this tile is complete; none where it can be computed quickly without them."""
        if self.block == 1:
            return []
        known = self.weights.rows(as_slice(tile.rows)).state_known
        quick = known or len(tile.rows) * self.keys <= 2 * BAND
        if quick and not self._uses_base(tile):
            return []
        return [band for band in self.bands(tile.rows) if not self.pooled[band]]

    @torch.no_grad()
    def pool_band(self, band: int) -> None:
        """Compute one band of queries: their row states, and their part of the base level."""
        rows = range(band * self.band, min((band + 1) * self.band, self.queries))
        tall = self.block * max(1, TALL // self.block)
        for start in range(rows.start, rows.stop, tall):
            part = range(start, min(start + tall, rows.stop))
            maxima, sums = (x[0].float() for x in self.weights.rows(as_slice(part)).pool_keys(self.block))
            blocks, place = Cells.blocks(len(part), self.block, self._device), as_slice(part, self.block)
            self._base["max"][place] = blocks.pool(maxima, -2, "max")
            self._base["mean"][place] = blocks.pool(sums, -2, "mean")
        self.pooled[band] = True

    # Tiles

    @torch.no_grad()
    def tile(self, tile: Tile, pool: Pool) -> Float[Tensor, "height width"]:
        """The largest weight of every cell, or the mean; zeros where bands are missing."""
        edges = tile.edges
        if self._uses_base(tile):
            row_edges, col_edges = (
                [*(x // self.block for x in side[:-1]), -(-side[-1] // self.block)] for side in edges
            )
            base = self._base[pool][row_edges[0] : row_edges[-1], col_edges[0] : col_edges[-1]]
            cells = self._pool(base, row_edges, col_edges, pool)
        else:
            missing, parts, first = set(self.missing_bands(tile)), [], 0
            while first < tile.height:  # as many rows of cells at a time as fit into a chunk
                last = first + 1
                while last < tile.height and (edges[0][last + 1] - edges[0][first]) * len(tile.cols) <= CHUNK:
                    last += 1
                parts.append(self._pool_rows(edges[0][first : last + 1], tile, pool, missing))
                first = last
            cells = torch.cat(parts)
        if pool == "mean":
            high, wide = (torch.tensor(side, dtype=torch.float32, device=self._device).diff() for side in edges)
            cells = cells / (high[:, None] * wide)
        return cells.cpu()

    def _pool_rows(self, edges: list[int], tile: Tile, pool: Pool, missing: set[int]) -> Float[Tensor, "high width"]:
        rows = range(edges[0], edges[-1])
        if missing.intersection(self.bands(rows)) or not self.weights.sees(as_slice(rows), as_slice(tile.cols)):
            return torch.zeros(len(edges) - 1, tile.width, device=self._device)
        w = self.weights.tile(as_slice(rows), as_slice(tile.cols)).float()
        return self._pool(w, edges, tile.edges[1], pool)

    def _pool(self, x: Float[Tensor, "rows cols"], rows: list[int], cols: list[int], pool: Pool) -> Tensor:
        """The maximum, or the sum, of every cell. Rows first: they are contiguous, and fewer remain for the columns."""
        return Cells(cols, self._device).pool(Cells(rows, self._device).pool(x, -2, pool), -1, pool)

    def _uses_base(self, tile: Tile) -> bool:
        """Whether the tile is pooled from the base level: its cells are whole blocks. A 422 for other large ones."""
        cell = min(len(tile.rows) // tile.height, len(tile.cols) // tile.width)
        ends = zip(tile.edges, (self.queries, self.keys), strict=True)
        aligned = not any(x % self.block for edges, end in ends for x in edges if x != end)
        if not aligned and cell >= 2 * self.block and len(tile.rows) * len(tile.cols) > 2 * BAND:
            size = f"{len(tile.rows):,} × {len(tile.cols):,} weights"
            raise RequestError(422, f"{size} are pooled from blocks of {self.block}: let cells begin and end at those")
        return self.block > 1 and aligned and cell >= self.block


HIGH, NORMAL = 0, 1
"""Priorities: short computations run before long ones."""
TILE_SECONDS = 0.5
"""Seconds after which a tile is sent as far as it is computed."""
T = TypeVar("T")


class Worker:
    """`submit` returns a future; cancelled before it starts, its function is never called."""

    def __init__(self, name: str) -> None:
        self._queue: queue.PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any] | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name=f"regard-{name}", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any] | None, priority: int = NORMAL) -> Future[Any]:
        future: Future[Any] = Future()
        self._queue.put((priority, next(self._order), future, function))
        return future

    def close(self) -> None:
        """Drop what waits, and end the thread: PyTorch aborts a process that exits while it computes."""
        with self._queue.mutex:
            self._queue.queue.clear()
        self.submit(None)
        self._thread.join(10)

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
            return Array(pyramid.tile(tile, pool), type, 1 - len(missing) / len(pyramid.bands(tile.rows)))

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
