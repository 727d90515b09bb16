"""One call of attention: its weights, the largest of them, tiles at any zoom, and how one query meets its keys."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query, Request, Response

from ...data.neuron_view import WIDEST, neuron
from ...data.tile_pyramid import Tile
from .. import limits
from ..responses import EncodedArray, RequestError, json_response
from .route_parameters import (
    ARRAY,
    BYTES,
    ERRORS,
    HEADERS,
    CallId,
    Entry,
    Head,
    Heads,
    Numbers,
    Pooling,
    Span,
    TraceId,
    check_cells,
    check_head,
    chosen,
    heads_of,
    jobs_of,
    span_of,
)

router = APIRouter(prefix="/traces/{trace}/calls/{call}")
TILE = {
    **ARRAY,
    202: {
        "description": "As far as it is computed (X-Computed, a share); ask again for the rest",
        "content": BYTES,
        "headers": HEADERS,
    },
}
Edge = Annotated[int, Query(ge=0, le=limits.PLACES)]
Side = Annotated[int, Query(ge=1, le=limits.SIDE)]
WAITED = 1 << 30
"""Weights that are gone through while somebody waits."""
FEW = 1 << 22
"""Of these at once."""


@router.get("/weights", responses=ARRAY, response_class=Response)
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
    """The weights themselves, [heads, rows, cols]."""
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    count, queries, keys = chosen(found, call, entry)
    which = heads_of(heads, count)
    i, j = span_of(rows, queries, "rows"), span_of(cols, keys, "cols")
    check_cells(len(which), len(i), len(j))
    await jobs.know(request, found, call, entry, which, i)

    def compute() -> EncodedArray:
        parts = [jobs.map(found, call, entry, head).weights(i, j) for head in which]
        return EncodedArray.of(torch.stack(parts), type)

    return (await jobs.do(request, compute)).response(request)


@router.get("/top", responses=ERRORS, response_model=dict[str, Any])
async def top(
    request: Request,
    trace: TraceId,
    call: CallId,
    heads: Heads = None,
    entry: Entry = 0,
    rows: Span = None,
    k: Annotated[int, Query(ge=1, le=4096, description="How many of each row")] = 8,
) -> Response:
    """The k largest weights of each row and the keys they belong to: values and indices, [heads, rows, k]."""
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    count, queries, keys = chosen(found, call, entry)
    which, i, k = heads_of(heads, count), span_of(rows, queries, "rows"), min(k, keys)
    check_cells(len(which), len(i), k)
    if len(which) * len(i) * keys > WAITED:
        said = f"{len(which)} × {len(i):,} × {keys:,} weights take too long to go through"
        raise RequestError(413, f"{said}; at most {WAITED:,} at once: ask for fewer rows or heads")
    await jobs.know(request, found, call, entry, which, i)
    values: list[list[Any]] = [[] for _ in which]
    indices: list[list[Any]] = [[] for _ in which]
    for at, some in product(range(len(which)), _few(i, keys)):  # a few at a time, so that it can end between them

        def compute(at: int = at, some: range = some) -> None:
            best = jobs.map(found, call, entry, which[at]).weights(some, range(keys)).topk(k)
            values[at] += [[float(f"{w:.6g}") for w in row] for row in best.values.tolist()]
            indices[at] += best.indices.tolist()

        await jobs.do(request, compute)
    return json_response({"values": values, "indices": indices}, request)


def _few(rows: range, keys: int) -> list[range]:
    step = max(1, FEW // keys)
    return [range(at, min(at + step, rows.stop)) for at in range(rows.start, rows.stop, step)]


@router.get("/received", responses=ARRAY, response_class=Response)
async def received(request: Request, trace: TraceId, call: CallId, head: Head = 0, entry: Entry = 0) -> Response:
    """How much attention each key receives from all queries, [keys]."""
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    count, queries, keys = chosen(found, call, entry)
    check_head(head, count)
    if queries * keys > WAITED:
        raise RequestError(413, f"{queries:,} × {keys:,} weights take too long to add up; the map shows their means")
    total = torch.zeros(keys)
    for some in _few(range(queries), keys):

        def add(some: range = some) -> None:
            total.add_(jobs.map(found, call, entry, head).weights(some, range(keys)).sum(0))

        await jobs.do(request, add)
    return EncodedArray.of(total).response(request)


@router.get("/tile", responses=TILE, response_class=Response)
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

    Cells are of a power of two along a side where that gives as many, the last of them smaller; else cell r of R covers
    rows r·T//R up to (r+1)·T//R of T. Where the cells of a long text would have to be added up from more weights than
    can be computed at once, their edges are moved to multiples of a power of two, and X-Note says of which.
    """
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    count, queries, keys = chosen(found, call, entry)
    check_head(head, count)
    bottom, right = min(bottom, queries), min(right, keys)
    if top >= bottom or left >= right:
        raise RequestError(422, f"rows {top}:{bottom} and columns {left}:{right} are none of {queries} × {keys}")
    if height > bottom - top or width > right - left:
        raise RequestError(
            422, f"{bottom - top} × {right - left} weights cannot be pooled to {height} × {width} cells; ask for fewer"
        )
    wanted = Tile(top, left, bottom, right, height, width)
    return (await jobs.tile(request, found, call, entry, head, wanted, pool, type)).response(request)


@router.get("/neuron", responses=ERRORS, response_model=dict[str, Any])
async def one_query(
    request: Request,
    trace: TraceId,
    call: CallId,
    query: Annotated[int, Query(ge=0, le=limits.PLACES)],
    head: Head = 0,
    entry: Entry = 0,
    cols: Span = None,
) -> Response:
    """How one query meets its keys: q, k, the terms of the energy, their sum, and the weight."""
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    count, queries, keys = chosen(found, call, entry)
    check_head(head, count)
    if query >= queries:
        raise RequestError(404, f"there is no query {query}; the call has {queries}, from 0")
    j = span_of(cols if cols is not None else f"0:{min(keys, WIDEST)}", keys, "cols")
    if len(j) > WIDEST:
        raise RequestError(413, f"{len(j):,} keys; at most {WIDEST} are given at once: name them with cols=a:b")
    told = await jobs.do(request, lambda: neuron(found.weights(call, entry)[head], query, j))
    return json_response(told, request)
