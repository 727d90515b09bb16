"""Routes of traces and of their calls: what they hold, and what is computed of their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import torch
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel, Field

from .. import __version__
from . import guard
from .answer_contributions import (
    ContributionRun,
    Target,
    contribution_run,
    pooled_contributions,
    silence,
    trace_answers,
)
from .guard import RequestError
from .inside import MOST_KEYS, neuron_view
from .responses import ARRAY, ERRORS, JSON, TILE, Array, rounded, view_names
from .tiles import Tile, as_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .tiles import Jobs
    from .trace_view import TraceView

T = TypeVar("T")
CHUNK = 1 << 22
"""Weights of one job of a request that needs many."""
MOST_ANSWERS = 1 << 24

# --- Parameters ------------------------------------------------------------------------------------------------------

TraceId = Annotated[str, PathParameter(pattern="^[0-9a-f]{1,40}$", description="A trace's id, from /api/traces")]
CallId = Annotated[int, PathParameter(ge=0, le=100_000, description="Index of the call in the trace")]
Entry = Annotated[int, Query(ge=0, le=1 << 20, description="Index in the batch")]
Head = Annotated[int, Query(ge=0, le=1 << 16)]
Heads = Annotated[
    str | None, Query(pattern="^[0-9]{1,5}(,[0-9]{1,5}){0,511}$", description="Heads, such as 0,3,5; default: all")
]
Span = Annotated[str | None, Query(pattern="^[0-9]{0,8}:[0-9]{0,8}$", description="A slice, such as 0:64")]
Pooling = Annotated[Literal["max", "mean"], Query(description="How the weights of a cell are pooled")]
Numbers = Annotated[Literal["float32", "float16", "uint8"], Query(alias="type")]
Edge = Annotated[int, Query(ge=0, le=guard.PLACES)]
Side = Annotated[int, Query(ge=1, le=guard.SIDE)]
Position = Annotated[int, Query(ge=0, le=guard.PLACES, description="The query whose answer is explained")]
Answer = Annotated[int, Query(ge=0, lt=MOST_ANSWERS, description="The answer: a token, label or position, by number")]
Minus = Annotated[int | None, Query(ge=0, lt=MOST_ANSWERS, description="Another, whose score is subtracted")]
CallHeads = Annotated[
    str,
    Query(pattern=r"^[0-9]{1,5}\.[0-9]{1,5}(,[0-9]{1,5}\.[0-9]{1,5}){0,63}$", description="call.head, such as 4.0,4.1"),
]
Word = Annotated[str | None, Query(min_length=1, max_length=80)]


def check_below(number: int, count: int, noun: str, whole: str) -> None:
    """A 404 where there is no such one."""
    if number >= count:
        raise RequestError(404, f"there is no {noun} {number}; the {whole} has {count}, counted from 0")


def check_cells(*sizes: int) -> None:
    """A 413 for more numbers than a response holds."""
    cells = math.prod(sizes)
    if cells > guard.CELLS:
        shape = " × ".join(f"{size:,}" for size in sizes)
        raise RequestError(
            413, f"{shape} are {cells:,} numbers; one response holds at most {guard.CELLS:,}: request fewer"
        )


def span_of(text: str | None, count: int, name: str) -> range:
    """The range of a slice "a:b"; either side may be empty."""
    start, stop = (text or ":").split(":")
    span = range(int(start or 0), min(int(stop or count), count))
    if not span:
        raise RequestError(422, f"{name} {text} is an empty range; there are {count}, counted from 0")
    return span


@dataclass
class TracePlace:
    """A trace, and the request for it."""

    request: Request
    view: TraceView

    @property
    def jobs(self) -> Jobs:
        jobs: Jobs = self.request.app.state.jobs
        return jobs

    async def run(self, function: Callable[[], T]) -> T:
        return await self.jobs.run(self.request, function)

    def call(self, number: int, entry: int = 0) -> CallPlace:
        calls = self.view.seen.calls
        check_below(number, len(calls), "call", "trace")
        shape = calls[number].shape
        check_below(entry, shape[-4] if len(shape) > 3 else 1, "entry", "batch")
        heads = shape[-3] if len(shape) > 2 else 1
        return CallPlace(self.request, self.view, number, entry, heads, *shape[-2:])

    async def explained(self, target: Target) -> ContributionRun:
        """The run that explains an answer, from the cache where it is there."""
        key, cache = (self.view.id, "run", target), self.jobs.cache

        def run() -> ContributionRun:
            answers = trace_answers(self.jobs.library, self.view, target.position)
            found: ContributionRun | None = cache.get(key)  # another request may have computed it meanwhile
            return found or contribution_run(self.view, answers, target)

        result: ContributionRun = cache.get(key) or await self.jobs.run_model(self.request, run)
        self.jobs.store(key, result, result.nbytes)
        return result


@dataclass
class CallPlace(TracePlace):
    """A call of a trace and an entry of its batch, and the request for it."""

    number: int
    entry: int
    heads: int
    queries: int
    keys: int

    def check_head(self, head: int) -> None:
        check_below(head, self.heads, "head", "call")

    def chosen(self, heads: str | None, rows: str | None, cols: str | None) -> tuple[list[int], range, range]:
        """The heads, rows and columns that are asked for; all where none are named."""
        which = list(range(self.heads)) if heads is None else [int(x) for x in heads.split(",")]
        for head in which:
            self.check_head(head)
        return which, span_of(rows, self.queries, "rows"), span_of(cols, self.keys, "cols")

    def tile(self, asked: Tile) -> Tile:
        """A tile within the matrix; a 422 where it is empty or has more cells than weights."""
        tile = replace(asked, bottom=min(asked.bottom, self.queries), right=min(asked.right, self.keys))
        if not tile.rows or not tile.cols:
            place = f"rows {tile.top}:{tile.bottom}, columns {tile.left}:{tile.right} of {self.queries} × {self.keys}"
            raise RequestError(422, f"{place} are an empty rectangle")
        if tile.height > len(tile.rows) or tile.width > len(tile.cols):
            size, cells = f"{len(tile.rows)} × {len(tile.cols)}", f"{tile.height} × {tile.width}"
            raise RequestError(422, f"{size} weights cannot be pooled to {cells} cells; ask for fewer cells")
        return tile

    async def weights(self, heads: list[int], rows: range, cols: range, compute: Callable[[Tensor], T]) -> list[T]:
        """`compute` of the weights [heads, rows, cols], some rows at a time: in between, a request can be cancelled."""
        step = max(1, CHUNK // (self.keys * len(heads)))

        def part(first: int) -> T:
            w = self.view.weights(self.number, self.entry)
            some = slice(first, min(first + step, rows.stop))
            return compute(torch.stack([w[head].tile(some, as_slice(cols)) for head in heads]).float())

        return [await self.run(partial(part, first)) for first in range(rows.start, rows.stop, step)]


async def trace_place(request: Request, trace: TraceId) -> TracePlace:
    return TracePlace(request, request.app.state.jobs.library.trace(trace))


async def call_place(request: Request, trace: TraceId, call: CallId, entry: Entry = 0) -> CallPlace:
    return (await trace_place(request, trace)).call(call, entry)


async def explained_call_place(request: Request, trace: TraceId, call: CallId) -> CallPlace:
    return (await trace_place(request, trace)).call(call)


async def asked_tile(top: Edge, left: Edge, bottom: Edge, right: Edge, height: Side, width: Side) -> Tile:
    return Tile(top, left, bottom, right, height, width)


async def asked_target(position: Position, answer: Answer, minus: Minus = None) -> Target:
    return Target(position, answer, minus)


Trace = Annotated[TracePlace, Depends(trace_place)]
Call = Annotated[CallPlace, Depends(call_place)]
ExplainedCall = Annotated[CallPlace, Depends(explained_call_place)]
AskedTile = Annotated[Tile, Depends(asked_tile)]
AskedTarget = Annotated[Target, Depends(asked_target)]

# --- Traces ----------------------------------------------------------------------------------------------------------

trace_router = APIRouter(responses=ERRORS)


class ReadRequest(BaseModel):
    """A text that a model reads while its attention is watched."""

    model_config = {"extra": "forbid"}
    model: str = Field(max_length=200)
    text: str = Field(min_length=1, max_length=guard.TEXT)
    second: str | None = Field(default=None, min_length=1, max_length=guard.TEXT)
    generate: int = Field(default=0, ge=0, le=guard.GENERATED)


@trace_router.get("/token")
async def token(request: Request) -> Response:
    """The token of this server, for a link that opens in another browser; null where it asks for none."""
    return JSON({"token": request.state.token})


@trace_router.get("/about")
async def about(request: Request) -> Response:
    """The version, models, traces, views and limits of this server.

    `coming` are traces that are still being made; `opening` is the part of the page's state that it shows where a link
    names no view. Of a model, `layers` are those that the Inside view can show, `examples` sentences of the words that
    it knows (none where any will do); `attends` is false where there is no attention to show.
    """
    library = request.app.state.jobs.library
    content = {
        "version": __version__,
        "models": [model.summary for model in library.models.values()],
        "coming": len(library.pending),
        "traces": await _summaries(request),
        "views": view_names(),
        "opening": library.opening,
        "limits": guard.public(),
    }
    return JSON(content)


@trace_router.get("/traces")
async def traces(request: Request) -> Response:
    """The traces that this browser lists."""
    return JSON(await _summaries(request))


async def _summaries(request: Request) -> list[dict[str, Any]]:
    jobs: Jobs = request.app.state.jobs
    views = jobs.library.listed(request.state.session)
    return await jobs.run(request, lambda: [view.summary for view in views])


@trace_router.post("/traces", status_code=201)
async def read(request: Request, body: ReadRequest) -> Response:
    """Run a model over a text and watch it; the answer is the id of the trace. Models run one at a time."""
    jobs: Jobs = request.app.state.jobs
    jobs.library.model(body.model)
    owner = request.state.session
    function = partial(jobs.library.read, body.model, body.text, body.second, body.generate, owner=owner)
    return JSON({"id": (await jobs.run_model(request, function)).id}, 201)


@trace_router.get("/traces/{trace}")
async def trace(place: Trace, entry: Entry = 0) -> Response:
    """The calls of a trace, in order, and the tokens along their sides."""
    check_below(entry, place.view.batch, "entry", "batch")
    return JSON(await place.run(partial(place.view.describe, entry)))


@trace_router.get("/traces/{trace}/thumbs", responses=ARRAY, response_class=Response)
async def thumbs(
    place: Trace,
    entry: Entry = 0,
    size: Annotated[int, Query(ge=1, le=128, description="Cells along one side")] = 32,
    pool: Pooling = "max",
    call: Annotated[int | None, Query(ge=0, description="Only the heads of this call")] = None,
) -> Response:
    """Thumbnails of every head of every call, or of one: uint8 [heads, size, size], one peak for each.

    For long texts each row of cells shows a single query, and X-Note says so.
    """
    key = place.view.id, "thumbs", entry, size, pool, call
    array: Array | None = place.jobs.cache.get(key)
    if array is None:
        calls = [place.call(at, entry).number for at in (range(len(place.view.seen)) if call is None else [call])]
        parts = [await place.run(partial(place.view.thumbnails, at, entry, size, pool)) for at in calls]
        note = "a row of cells shows one query" if any(sampled for _, sampled in parts) else ""
        array = Array(torch.cat([cells for cells, _ in parts]), "uint8", note=note)
        place.jobs.store(key, array, len(array.body))
    return array


@trace_router.get("/traces/{trace}/stats")
async def stats(place: Trace, entry: Entry = 0) -> Response:
    """For every head: entropy, confidence (mean largest weight), sink (mean weight on the first key), prompt.

    They are over `rows` of the call's `of` queries.
    """
    calls = [place.call(at, entry).number for at in range(len(place.view.seen))]
    return JSON({"calls": [await place.run(partial(place.view.statistics, at, entry)) for at in calls]})


@trace_router.get("/traces/{trace}/patterns")
async def patterns(place: Trace, entry: Entry = 0) -> Response:
    """The pattern scores, labels and p-values of each head, or why there are none."""
    check_below(entry, place.view.batch, "entry", "batch")
    return JSON(await place.run(partial(place.view.patterns, entry)))


# --- Calls -----------------------------------------------------------------------------------------------------------

call_router = APIRouter(prefix="/traces/{trace}/calls/{call}", responses=ERRORS)


@call_router.get("/weights", responses=ARRAY, response_class=Response)
async def weights(
    place: Call, heads: Heads = None, rows: Span = None, cols: Span = None, type: Numbers = "float32"
) -> Response:
    """The weights, [heads, rows, cols]."""
    which, i, j = place.chosen(heads, rows, cols)
    check_cells(len(which), len(i), len(j))
    parts = await place.weights(which, i, j, lambda x: x)
    return await place.run(lambda: Array(torch.cat(parts, 1), type))


@call_router.get("/top")
async def top(
    place: Call,
    heads: Heads = None,
    rows: Span = None,
    k: Annotated[int, Query(ge=1, le=4096, description="How many per row")] = 8,
) -> Response:
    """The k largest weights of each row and the keys they belong to: values and indices, [heads, rows, k]."""
    which, i, j = place.chosen(heads, rows, None)
    k = min(k, place.keys)
    check_cells(len(which), len(i), k)

    parts = await place.weights(which, i, j, lambda x: x.topk(k))
    values, indices = (torch.cat(side, 1) for side in zip(*parts, strict=True))
    return JSON(await place.run(lambda: {"values": rounded(values), "indices": indices.tolist()}))


@call_router.get("/received", responses=ARRAY, response_class=Response)
async def received(place: Call, head: Head = 0) -> Response:
    """How much attention each key receives from all queries, [keys]."""
    place.check_head(head)
    parts = await place.weights([head], range(place.queries), range(place.keys), lambda x: x.sum((0, 1)))
    return Array(torch.stack(parts).sum(0))


@call_router.get("/tile", responses=TILE, response_class=Response)
async def tile(
    place: Call, asked: AskedTile, head: Head = 0, pool: Pooling = "max", type: Numbers = "float32"
) -> Response:
    """A rectangle of one head, pooled to [height, width] cells.

    Where cells of a power of two give the requested number of cells, they are used, the last one smaller; else cell r
    of R covers rows r·T//R up to (r+1)·T//R of T. Of more than 2,048 tokens, large tiles have cells that begin and end
    at multiples of a power of two, which a 422 names.
    """
    place.check_head(head)
    head_place = place.view, place.number, place.entry, head
    return await place.jobs.tile(place.request, *head_place, place.tile(asked), pool, type)


@call_router.get("/neuron")
async def neuron(
    place: Call, query: Annotated[int, Query(ge=0, le=guard.PLACES)], head: Head = 0, cols: Span = None
) -> Response:
    """One query and its keys: q, k, the terms of the energy, their sum, and the weight."""
    place.check_head(head)
    check_below(query, place.queries, "query", "call")
    j = span_of(cols or f"0:{min(place.keys, MOST_KEYS)}", place.keys, "cols")
    if len(j) > MOST_KEYS:
        raise RequestError(413, f"{len(j):,} keys; at most {MOST_KEYS} per request: select them with cols=a:b")
    weights = partial(place.view.weights, place.number, place.entry)
    return JSON(await place.run(lambda: neuron_view(weights()[head], query, j)))


# --- Contributions ---------------------------------------------------------------------------------------------------


@trace_router.get("/traces/{trace}/answers")
async def answers(
    place: Trace,
    position: Annotated[int | None, Query(ge=0, le=guard.PLACES, description="Default: the last")] = None,
    answer: Annotated[int | None, Query(ge=0, lt=MOST_ANSWERS, description="Default: the likeliest")] = None,
    minus: Minus = None,
    word: Word = None,
    minus_word: Word = None,
) -> Response:
    """The answers that the model chose from at a position, and what each head contributed to one of them.

    `answer` and `minus` are numbers of answers, `word` and `minus_word` words for them. `calls` has for each call the
    totals Σ_i g_i · o_i of its heads, the largest contribution (`peak`), and the error of Σ_j C_ij = g_i · o_i.
    """

    def run() -> ContributionRun:
        inputs = trace_answers(place.jobs.library, place.view, -1 if position is None else position)
        chosen = inputs.find(word) if word is not None else answer
        other = inputs.find(minus_word) if minus_word is not None else minus
        if chosen is None and other is not None:
            raise RequestError(422, "`minus` is the second of two answers; give the first with `answer` or `word`")
        target = None if chosen is None else Target(inputs.position, chosen, other)
        cached: ContributionRun | None = place.jobs.cache.get((place.view.id, "run", target))
        return cached or contribution_run(place.view, inputs, target)

    if position is not None and answer is not None and word is None and minus_word is None:
        result = await place.explained(Target(position, answer, minus))
    else:  # what is explained is known only after the model was asked
        result = await place.jobs.run_model(place.request, run)
        place.jobs.store((place.view.id, "run", result.target), result, result.nbytes)
    return JSON(await place.run(result.describe))


@call_router.get("/contributions", responses=ARRAY, response_class=Response)
async def contributions(
    place: ExplainedCall, target: AskedTarget, heads: Heads = None, rows: Span = None, cols: Span = None
) -> Response:
    """C_ij = w_ij (g_i · v_j), signed float32, [heads, rows, cols]."""
    which, i, j = place.chosen(heads, rows, cols)
    check_cells(len(which), len(i), len(j))
    c = (await place.explained(target)).of(place.number).contributions
    rectangle = slice(i.start, i.stop), slice(j.start, j.stop)
    return await place.run(lambda: Array(torch.stack([c[head].tile(*rectangle) for head in which])))


@call_router.get("/contributions/tile", responses=ARRAY, response_class=Response)
async def contribution_tile(
    place: ExplainedCall, target: AskedTarget, asked: AskedTile, head: Head = 0, pool: Pooling = "max"
) -> Response:
    """A rectangle of one head, pooled to [height, width] cells: the contribution of largest size, or the mean."""
    place.check_head(head)
    rectangle = place.tile(asked)
    c = (await place.explained(target)).of(place.number).contributions
    return await place.run(lambda: Array(pooled_contributions(c[head], rectangle, pool)))


@trace_router.get("/traces/{trace}/silenced")
async def silenced(place: Trace, target: AskedTarget, heads: CallHeads) -> Response:
    """The score of the answer with one head at a time set to zero: `values` of the first so many of `heads`.

    As many as take about half a second; ask again for the rest.
    """
    pairs = [(int(call), int(head)) for call, head in (pair.split(".") for pair in heads.split(","))]
    for call, head in pairs:
        place.call(call).check_head(head)
    run = await place.explained(target)
    function = partial(silence, place.jobs.library, run, place.view, pairs)
    return JSON({"value": run.value, "values": await place.jobs.run_model(place.request, function)})
