"""Work: a request's computations, done at the worker while somebody waits for them; when nobody does, they end."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..data.tile_pyramid import TilePyramid
from . import limits
from .lru_cache import LRUCache
from .responses import ClientDisconnected, EncodedArray, RequestError
from .worker import URGENT, USUAL, QueueFull, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fastapi import Request

    from ..data.library import Library
    from ..data.tile_pyramid import Pool, Tile
    from ..data.trace_view import TraceView

T = TypeVar("T")
PATIENCE = 0.5
"""Seconds after which a tile is given as far as it is computed."""


@dataclass
class Jobs:
    """What the routes share."""

    library: Library
    worker: Worker = field(default_factory=lambda: Worker("numbers"))
    models: Worker = field(default_factory=lambda: Worker("models"))
    maps: LRUCache[TilePyramid] = field(default_factory=lambda: LRUCache(limits.MEMORY))
    answers: LRUCache[EncodedArray] = field(default_factory=lambda: LRUCache(limits.MEMORY // 4))

    def __post_init__(self) -> None:
        self.library.on_drop = self._forget

    def close(self) -> None:
        self.worker.close()
        self.models.close()

    async def do(
        self, request: Request, work: Callable[[], T], urgency: int = USUAL, worker: Worker | None = None
    ) -> T:
        """Wait for its turn and for the result; if the client goes first, its turn never comes."""
        try:
            future = (worker or self.worker).submit(work, urgency)
        except QueueFull as error:
            raise RequestError(503, str(error)) from None
        waited: asyncio.Future[T] = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(_gone(request))
        try:
            both: set[asyncio.Future[Any]] = {waited, gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not waited.done():
                raise ClientDisconnected
            return waited.result()
        finally:
            gone.cancel()
            future.cancel()
            waited.cancel()  # what comes of it after all nobody need look at

    async def run(self, request: Request, work: Callable[[], T]) -> T:
        """The same for what a model does, which ends too; what it cannot do is the request's mistake."""
        left = threading.Event()

        def tried() -> T:
            self.library.left = left
            try:
                return work()
            except RequestError:
                raise
            except (ValueError, OSError) as error:
                raise RequestError(422, " ".join(str(error).split())) from None
            finally:
                self.library.left = None

        try:
            return await self.do(request, tried, worker=self.models)
        finally:
            left.set()

    def map(self, trace: TraceView, call: int, entry: int, head: int) -> TilePyramid:
        """What is known of one head; at the worker only."""
        key = trace.id, call, entry, head
        found = self.maps.get(key)
        if found is None:
            found = TilePyramid(trace.weights(call, entry)[head])
            self.keep(self.maps, key, found, found.nbytes)
        return found

    def keep(self, cache: LRUCache[T], key: tuple[str, *tuple[Hashable, ...]], value: T, size: int) -> None:
        """As long as there is the trace it is of: a map holds its queries and keys."""
        cache.put(key, value, size)
        if key[0] not in self.library.traces:  # looked at last: it may go meanwhile
            self._forget(key[0])

    def _forget(self, id: str) -> None:
        for cache in (self.maps, self.answers):
            cache.drop(lambda key: key[0] == id)

    async def know(
        self, request: Request, trace: TraceView, call: int, entry: int, heads: list[int], rows: range
    ) -> None:
        """Find the row states of these heads a band at a time, so that it can end between them."""
        for head in heads:

            def look(head: int = head) -> tuple[TilePyramid, list[int]]:
                found = self.map(trace, call, entry, head)
                # Fewer are found quickly with the weights themselves.
                return found, found.unknown(rows) if len(rows) > found.band else []

            found, unknown = await self.do(request, look)  # held, since what is kept may be dropped meanwhile
            for band in unknown:
                await self.do(request, partial(found.know, band))

    async def tile(
        self, request: Request, trace: TraceView, call: int, entry: int, head: int, tile: Tile, pool: Pool, type: str
    ) -> EncodedArray:
        key = (trace.id, call, entry, head, tile, pool, type)
        kept = self.answers.get(key)
        if kept is not None:
            return kept
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE

        def step(last: bool) -> EncodedArray | None:
            found = self.map(trace, call, entry, head)
            missing = found.missing(tile)
            if missing and not last:
                found.walk(missing[0])
                self.keep(self.maps, (trace.id, call, entry, head), found, found.nbytes)
                return None
            edges = found.edges(tile)
            note = "" if edges == tile.edges else f"cells moved to multiples of {found.block}"
            share = 1 - len(missing) / len(found.bands(tile.rows))
            return EncodedArray.of(found.tile(tile, pool), type, share, note)

        answer = await self.do(request, lambda: step(False), URGENT)
        while answer is None:
            last = loop.time() > until
            answer = await self.do(request, lambda last=last: step(last), URGENT if last else USUAL)  # type: ignore[misc]
        if answer.computed == 1:
            self.keep(self.answers, key, answer, len(answer.data))
        return answer


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
