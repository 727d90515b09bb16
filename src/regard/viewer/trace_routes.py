"""Routes of whole traces: the list, making one, its calls and tokens, thumbnails, statistics and head patterns."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from .. import __version__
from . import guard
from .contributions import ContributionRun, Target, contribution_run, pooled_contributions, silence, trace_answers
from .guard import RequestError
from .inside import MOST_KEYS, neuron_view
from .responses import (
    ARRAY,
    BYTES,
    ERRORS,
    HEADERS,
    CallId,
    EncodedArray,
    Entry,
    Head,
    Heads,
    Numbers,
    Pooling,
    Span,
    TraceId,
    call_of,
    call_shape,
    check_cells,
    check_entry,
    check_head,
    heads_of,
    jobs_of,
    json_response,
    session_of,
    span_of,
    view_names,
)
from .tiles import Tile, as_slice

if TYPE_CHECKING:
    from .jobs import Jobs
    from .traces import TraceView

trace_router = APIRouter()


class ReadRequest(BaseModel):
    """A text that a model reads while its attention is watched."""

    model_config = {"extra": "forbid"}
    model: str = Field(max_length=200)
    text: str = Field(min_length=1, max_length=guard.TEXT)
    second: str | None = Field(default=None, min_length=1, max_length=guard.TEXT)
    generate: int = Field(default=0, ge=0, le=guard.GENERATED)


class TraceCreated(BaseModel):
    id: str


class TraceSummary(BaseModel):
    id: str
    title: str
    model: str
    tokens: int
    calls: int
    faithful: bool | None


class ModelSummary(BaseModel):
    name: str
    task: Literal["translate", "read", "generate", "classify", "caption", "listen"]
    title: str
    layers: int = 0
    """Layers that the Inside view can show."""
    examples: list[str] = Field(default_factory=list)
    """Sentences of the words that it knows; none where any will do."""
    attends: bool = True
    """Whether it has attention to show."""


class ServerInfo(BaseModel):
    version: str
    models: list[ModelSummary]
    traces: list[TraceSummary]
    coming: int
    """Traces that are still being made."""
    views: list[str]
    opening: dict[str, Any] = Field(default_factory=dict)
    """What the page shows where a link names no view: a part of its state."""
    limits: dict[str, int]


class HeadStatistics(BaseModel):
    """For each call: statistics of its heads over `rows` of its queries."""

    calls: list[dict[str, Any]]


class HeadPatterns(BaseModel):
    heads: list[dict[str, Any]]
    thresholds: dict[str, float]
    why: str


class TokenInfo(BaseModel):
    token: str | None


@trace_router.get("/token", responses=ERRORS)
async def token(request: Request) -> TokenInfo:
    """The token of this server, for a link that opens in another browser; null where it asks for none."""
    return TokenInfo(token=request.state.token)


@trace_router.get("/about", responses=ERRORS)
async def about(request: Request) -> ServerInfo:
    """The version, models, traces, views and limits of this server."""
    jobs = jobs_of(request)
    models = [
        ModelSummary(
            name=x.name,
            task=x.task,  # type: ignore[arg-type]
            title=x.title,
            layers=x.layers,
            examples=list(x.examples),
            attends=x.attends,
        )
        for x in jobs.library.models.values()
    ]
    return ServerInfo(
        version=__version__,
        models=models,
        coming=len(jobs.library.pending),
        traces=await traces(request),
        views=view_names(),
        opening=jobs.library.opening,
        limits=guard.public(),
    )


@trace_router.get("/traces", responses=ERRORS)
async def traces(request: Request) -> list[TraceSummary]:
    jobs = jobs_of(request)
    views = jobs.library.listed(session_of(request))
    return [TraceSummary(**x) for x in await jobs.run(request, lambda: [view.summary for view in views])]


@trace_router.post("/traces", responses=ERRORS, status_code=201)
async def read(request: Request, body: ReadRequest) -> TraceCreated:
    """Run a model over a text and watch it. Models run one at a time."""
    jobs = jobs_of(request)
    jobs.library.model(body.model)
    function = partial(jobs.library.read, body.model, body.text, body.second, body.generate, owner=session_of(request))
    return TraceCreated(id=(await jobs.run_model(request, function)).id)


@trace_router.get("/traces/{trace}", responses=ERRORS, response_model=dict[str, Any])
async def trace(request: Request, trace: TraceId, entry: Entry = 0) -> Response:
    """The calls of a trace, in order, and the tokens along their sides."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    check_entry(entry, view.batch)
    return json_response(await jobs.run(request, partial(view.describe, entry)), request)


@trace_router.get("/traces/{trace}/thumbs", responses=ARRAY, response_class=Response)
async def thumbs(
    request: Request,
    trace: TraceId,
    entry: Entry = 0,
    size: Annotated[int, Query(ge=1, le=128, description="Cells along one side")] = 32,
    pool: Pooling = "max",
    call: Annotated[int | None, Query(ge=0, description="Only the heads of this call")] = None,
) -> Response:
    """Thumbnails of every head of every call, or of one: uint8 [heads, size, size], one peak for each.

    For long texts each row of cells shows a single query, and X-Note says so.
    """
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    key = view.id, "thumbs", entry, size, pool, call
    array = jobs.arrays.get(key)
    if array is None:
        parts, sampled = [], False
        for number in range(len(view.seen)) if call is None else [call]:
            call_shape(view, number, entry)
            part, part_sampled = await jobs.run(request, partial(view.thumbnails, number, entry, size, pool))
            parts.append(part)
            sampled |= part_sampled
        array = EncodedArray.of(torch.cat(parts), "uint8", note="a row of cells shows one query" if sampled else "")
        jobs.store(jobs.arrays, key, array, len(array.data))
    return array.response(request)


@trace_router.get("/traces/{trace}/stats", responses=ERRORS)
async def stats(request: Request, trace: TraceId, entry: Entry = 0) -> HeadStatistics:
    """For every head: entropy, confidence (mean largest weight), sink (mean weight on the first key), prompt."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    calls = []
    for call in range(len(view.seen)):
        call_shape(view, call, entry)
        calls.append(await jobs.run(request, partial(view.statistics, call, entry)))
    return HeadStatistics(calls=calls)


@trace_router.get("/traces/{trace}/patterns", responses=ERRORS)
async def patterns(request: Request, trace: TraceId, entry: Entry = 0) -> HeadPatterns:
    """The pattern scores, labels and p-values of each head, or why there are none."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    check_entry(entry, view.batch)
    return HeadPatterns(**await jobs.run(request, partial(view.patterns, entry)))


call_router = APIRouter(prefix="/traces/{trace}/calls/{call}")
TILE = {
    **ARRAY,
    202: {
        "description": "A part is not computed yet (X-Computed: the fraction that is); request it again for the rest",
        "content": BYTES,
        "headers": HEADERS,
    },
}
Edge = Annotated[int, Query(ge=0, le=guard.PLACES)]
Side = Annotated[int, Query(ge=1, le=guard.SIDE)]
MOST_WEIGHTS = 1 << 30
"""Weights that one request may compute."""
CHUNK = 1 << 22
"""Weights of one job of such a request."""


@call_router.get("/weights", responses=ARRAY, response_class=Response)
async def weights(
    request: Request,
    trace: TraceId,
    call: CallId,
    heads: Heads = None,
    entry: Entry = 0,
    rows: Span = None,
    cols: Span = None,
    type: Numbers = "float32",
) -> Response:
    """The weights, [heads, rows, cols]."""
    jobs, view, (count, queries, keys) = call_of(request, trace, call, entry)
    which = heads_of(heads, count)
    i, j = span_of(rows, queries, "rows"), span_of(cols, keys, "cols")
    check_cells(len(which), len(i), len(j))
    await jobs.compute_row_states(request, view, call, entry, which, i)

    def compute() -> EncodedArray:
        parts = [jobs.pyramid(view, call, entry, head).weights.tile(as_slice(i), as_slice(j)).float() for head in which]
        return EncodedArray.of(torch.stack(parts), type)

    return (await jobs.run(request, compute)).response(request)


@call_router.get("/top", responses=ERRORS, response_model=dict[str, Any])
async def top(
    request: Request,
    trace: TraceId,
    call: CallId,
    heads: Heads = None,
    entry: Entry = 0,
    rows: Span = None,
    k: Annotated[int, Query(ge=1, le=4096, description="How many per row")] = 8,
) -> Response:
    """The k largest weights of each row and the keys they belong to: values and indices, [heads, rows, k]."""
    jobs, view, (count, queries, keys) = call_of(request, trace, call, entry)
    which, i, k = heads_of(heads, count), span_of(rows, queries, "rows"), min(k, keys)
    check_cells(len(which), len(i), k)
    if len(which) * len(i) * keys > MOST_WEIGHTS:
        size = f"{len(which)} × {len(i):,} × {keys:,} weights"
        raise RequestError(
            413, f"{size} take too long; at most {MOST_WEIGHTS:,} per request: ask for fewer rows or heads"
        )
    await jobs.compute_row_states(request, view, call, entry, which, i)
    values: list[list[Any]] = [[] for _ in which]
    indices: list[list[Any]] = [[] for _ in which]
    for at, rows_now in product(range(len(which)), _chunks(i, keys)):  # short jobs: the request can be cancelled

        def compute(at: int = at, rows_now: range = rows_now) -> None:
            best = (
                jobs.pyramid(view, call, entry, which[at]).weights.tile(as_slice(rows_now), slice(None)).float().topk(k)
            )
            values[at] += [[float(f"{w:.6g}") for w in row] for row in best.values.tolist()]
            indices[at] += best.indices.tolist()

        await jobs.run(request, compute)
    return json_response({"values": values, "indices": indices}, request)


def _chunks(rows: range, keys: int) -> list[range]:
    step = max(1, CHUNK // keys)
    return [range(at, min(at + step, rows.stop)) for at in range(rows.start, rows.stop, step)]


@call_router.get("/received", responses=ARRAY, response_class=Response)
async def received(request: Request, trace: TraceId, call: CallId, head: Head = 0, entry: Entry = 0) -> Response:
    """How much attention each key receives from all queries, [keys]."""
    jobs, view, (count, queries, keys) = call_of(request, trace, call, entry)
    check_head(head, count)
    if queries * keys > MOST_WEIGHTS:
        raise RequestError(
            413, f"{queries:,} × {keys:,} weights take too long to add up; tiles with pool=mean show their means"
        )
    total = torch.zeros(keys)
    for rows in _chunks(range(queries), keys):

        def add(rows: range = rows) -> None:
            total.add_(jobs.pyramid(view, call, entry, head).weights.tile(as_slice(rows), slice(None)).float().sum(0))

        await jobs.run(request, add)
    return EncodedArray.of(total).response(request)


def check_tile(tile: Tile, queries: int, keys: int) -> Tile:
    """The same tile; a 422 where it is empty or has more cells than weights."""
    top, left, bottom, right = tile.top, tile.left, tile.bottom, tile.right
    if top >= bottom or left >= right:
        raise RequestError(
            422, f"rows {top}:{bottom}, columns {left}:{right} of {queries} × {keys} are an empty rectangle"
        )
    if tile.height > bottom - top or tile.width > right - left:
        weights = f"{bottom - top} × {right - left} weights"
        raise RequestError(
            422, f"{weights} cannot be pooled to {tile.height} × {tile.width} cells; ask for fewer cells"
        )
    return tile


@call_router.get("/tile", responses=TILE, response_class=Response)
async def tile(
    request: Request,
    trace: TraceId,
    call: CallId,
    top: Edge,
    left: Edge,
    bottom: Edge,
    right: Edge,
    height: Side,
    width: Side,
    head: Head = 0,
    entry: Entry = 0,
    pool: Pooling = "max",
    type: Numbers = "float32",
) -> Response:
    """A rectangle of one head, pooled to [height, width] cells.

    Where cells of a power of two give the requested number of cells, they are used, the last one smaller; else cell r
    of R covers rows r·T//R up to (r+1)·T//R of T. Where a tile has more weights than can be computed at once, the edges
    of its cells are moved to multiples of a power of two, which X-Note names.
    """
    jobs, view, (count, queries, keys) = call_of(request, trace, call, entry)
    check_head(head, count)
    rectangle = check_tile(Tile(top, left, min(bottom, queries), min(right, keys), height, width), queries, keys)
    return (await jobs.tile(request, view, call, entry, head, rectangle, pool, type)).response(request)


@call_router.get("/neuron", responses=ERRORS, response_model=dict[str, Any])
async def neuron(
    request: Request,
    trace: TraceId,
    call: CallId,
    query: Annotated[int, Query(ge=0, le=guard.PLACES)],
    head: Head = 0,
    entry: Entry = 0,
    cols: Span = None,
) -> Response:
    """One query and its keys: q, k, the terms of the energy, their sum, and the weight."""
    jobs, view, (count, queries, keys) = call_of(request, trace, call, entry)
    check_head(head, count)
    if query >= queries:
        raise RequestError(404, f"there is no query {query}; the call has {queries}, counted from 0")
    j = span_of(cols if cols is not None else f"0:{min(keys, MOST_KEYS)}", keys, "cols")
    if len(j) > MOST_KEYS:
        raise RequestError(413, f"{len(j):,} keys; at most {MOST_KEYS} per request: select them with cols=a:b")
    content = await jobs.run(request, lambda: neuron_view(view.weights(call, entry)[head], query, j))
    return json_response(content, request)


contribution_router = APIRouter(prefix="/traces/{trace}")
MOST_ANSWERS = 1 << 24
Position = Annotated[int, Query(ge=0, le=guard.PLACES, description="The query whose answer is explained")]
Answer = Annotated[int, Query(ge=0, lt=MOST_ANSWERS, description="The answer: a token, label or position, by number")]
Minus = Annotated[int | None, Query(ge=0, lt=MOST_ANSWERS, description="Another, whose score is subtracted")]
CallHeads = Annotated[
    str,
    Query(pattern=r"^[0-9]{1,5}\.[0-9]{1,5}(,[0-9]{1,5}\.[0-9]{1,5}){0,63}$", description="call.head, such as 4.0,4.1"),
]
Word = Annotated[str | None, Query(min_length=1, max_length=80)]


@contribution_router.get("/answers", responses=ERRORS, response_model=dict[str, Any])
async def answers(
    request: Request,
    trace: TraceId,
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
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)

    def run() -> ContributionRun:
        inputs = trace_answers(jobs.library, view, -1 if position is None else position)
        chosen = inputs.find(word) if word is not None else answer
        other = inputs.find(minus_word) if minus_word is not None else minus
        if chosen is None and other is not None:
            raise RequestError(422, "`minus` is the second of two answers; give the first with `answer` or `word`")
        target = None if chosen is None else Target(inputs.position, chosen, other)
        cached = None if target is None else jobs.runs.get((view.id, target))
        return cached or contribution_run(view, inputs, target)

    if position is not None and answer is not None and word is None and minus_word is None:
        result = await _run_of(request, jobs, view, Target(position, answer, minus))
    else:  # what is explained is known only after the model was asked
        result = await jobs.run_model(request, run)
        jobs.store(jobs.runs, (view.id, result.target), result, result.nbytes)
    return json_response(await jobs.run(request, result.describe), request)


async def _run_of(request: Request, jobs: Jobs, view: TraceView, target: Target) -> ContributionRun:
    """The run of a target, from the cache where it is there."""

    def run() -> ContributionRun:
        cached = jobs.runs.get((view.id, target))  # another request may have computed it meanwhile
        return cached or contribution_run(view, trace_answers(jobs.library, view, target.position), target)

    result = jobs.runs.get((view.id, target))
    if result is None:
        result = await jobs.run_model(request, run)
        jobs.store(jobs.runs, (view.id, target), result, result.nbytes)
    return result


@contribution_router.get("/calls/{call}/contributions", responses=ARRAY, response_class=Response)
async def contributions(
    request: Request,
    trace: TraceId,
    call: CallId,
    position: Position,
    answer: Answer,
    minus: Minus = None,
    heads: Heads = None,
    rows: Span = None,
    cols: Span = None,
) -> Response:
    """C_ij = w_ij (g_i · v_j), signed float32, [heads, rows, cols]."""
    jobs, view, (count, queries, keys) = call_of(request, trace, call, 0)
    which = heads_of(heads, count)
    i, j = span_of(rows, queries, "rows"), span_of(cols, keys, "cols")
    check_cells(len(which), len(i), len(j))
    run = await _run_of(request, jobs, view, Target(position, answer, minus))

    def compute() -> EncodedArray:
        c, rectangle = run.of(call).contributions, (slice(i.start, i.stop), slice(j.start, j.stop))
        return EncodedArray.of(torch.stack([c[head].tile(*rectangle) for head in which]))

    return (await jobs.run(request, compute)).response(request)


@contribution_router.get("/calls/{call}/contributions/tile", responses=ARRAY, response_class=Response)
async def contribution_tile(
    request: Request,
    trace: TraceId,
    call: CallId,
    position: Position,
    answer: Answer,
    top: Edge,
    left: Edge,
    bottom: Edge,
    right: Edge,
    height: Side,
    width: Side,
    minus: Minus = None,
    head: Head = 0,
    pool: Pooling = "max",
) -> Response:
    """A rectangle of one head, pooled to [height, width] cells: the contribution of largest size, or the mean."""
    jobs, view, (count, queries, keys) = call_of(request, trace, call, 0)
    check_head(head, count)
    rectangle = check_tile(Tile(top, left, min(bottom, queries), min(right, keys), height, width), queries, keys)
    run = await _run_of(request, jobs, view, Target(position, answer, minus))

    def compute() -> EncodedArray:
        return EncodedArray.of(pooled_contributions(run.of(call).contributions[head], rectangle, pool))

    return (await jobs.run(request, compute)).response(request)


@contribution_router.get("/silenced", responses=ERRORS, response_model=dict[str, Any])
async def silenced(
    request: Request, trace: TraceId, position: Position, answer: Answer, heads: CallHeads, minus: Minus = None
) -> Response:
    """The score of the answer with one head at a time set to zero: `values` of the first so many of `heads`.

    As many as take about half a second; ask again for the rest.
    """
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    pairs = [(int(call), int(head)) for call, head in (pair.split(".") for pair in heads.split(","))]
    for call, head in pairs:
        check_head(head, call_shape(view, call, 0)[0])
    run = await _run_of(request, jobs, view, Target(position, answer, minus))
    values = await jobs.run_model(request, lambda: silence(jobs.library, run, view, pairs))
    return json_response({"value": run.value, "values": values}, request)
