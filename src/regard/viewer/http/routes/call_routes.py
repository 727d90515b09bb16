"""Routes of one attention call: weights, largest weights, weights received, tiles, and the terms of one query."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query, Request, Response

from ... import limits
from ...data.neuron_view import MOST_KEYS, neuron_view
from ...data.tile import Tile
from ...limits import RequestError
from ..responses import EncodedArray, json_response
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
    call_of,
    check_cells,
    check_head,
    heads_of,
    span_of,
)

router = APIRouter(prefix="/traces/{trace}/calls/{call}")
TILE = {
    **ARRAY,
    202: {
        "description": "A part is not computed yet (X-Computed: the fraction that is); request it again for the rest",
        "content": BYTES,
        "headers": HEADERS,
    },
}
Edge = Annotated[int, Query(ge=0, le=limits.PLACES)]
Side = Annotated[int, Query(ge=1, le=limits.SIDE)]
MOST_WEIGHTS = 1 << 30
"""Weights that one request may compute."""
CHUNK = 1 << 22
"""Weights of one job of such a request."""


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
    """The weights, [heads, rows, cols]."""
    jobs, view, (count, queries, keys) = call_of(request, trace, call, entry)
    which = heads_of(heads, count)
    i, j = span_of(rows, queries, "rows"), span_of(cols, keys, "cols")
    check_cells(len(which), len(i), len(j))
    await jobs.compute_row_states(request, view, call, entry, which, i)

    def compute() -> EncodedArray:
        parts = [jobs.pyramid(view, call, entry, head).matrix.weights(i, j) for head in which]
        return EncodedArray.of(torch.stack(parts), type)

    return (await jobs.run(request, compute)).response(request)


@router.get("/top", responses=ERRORS, response_model=dict[str, Any])
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
            best = jobs.pyramid(view, call, entry, which[at]).matrix.weights(rows_now, range(keys)).topk(k)
            values[at] += [[float(f"{w:.6g}") for w in row] for row in best.values.tolist()]
            indices[at] += best.indices.tolist()

        await jobs.run(request, compute)
    return json_response({"values": values, "indices": indices}, request)


def _chunks(rows: range, keys: int) -> list[range]:
    step = max(1, CHUNK // keys)
    return [range(at, min(at + step, rows.stop)) for at in range(rows.start, rows.stop, step)]


@router.get("/received", responses=ARRAY, response_class=Response)
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
            total.add_(jobs.pyramid(view, call, entry, head).matrix.weights(rows, range(keys)).sum(0))

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

    Where cells of a power of two give the requested number of cells, they are used, the last one smaller; else cell r
    of R covers rows r·T//R up to (r+1)·T//R of T. Where a tile has more weights than can be computed at once, the edges
    of its cells are moved to multiples of a power of two, which X-Note names.
    """
    jobs, view, (count, queries, keys) = call_of(request, trace, call, entry)
    check_head(head, count)
    rectangle = check_tile(Tile(top, left, min(bottom, queries), min(right, keys), height, width), queries, keys)
    return (await jobs.tile(request, view, call, entry, head, rectangle, pool, type)).response(request)


@router.get("/neuron", responses=ERRORS, response_model=dict[str, Any])
async def neuron(
    request: Request,
    trace: TraceId,
    call: CallId,
    query: Annotated[int, Query(ge=0, le=limits.PLACES)],
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
