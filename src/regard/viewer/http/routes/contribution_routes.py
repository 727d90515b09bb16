"""Routes of contributions: what each key contributed to an answer of the model, and the answer without some heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from fastapi import APIRouter, Query, Request, Response

from ... import limits
from ...data.contribution_run import (
    ContributionRun,
    Target,
    contribution_run,
    pooled_contributions,
    silence,
    trace_answers,
)
from ...data.tile import Tile
from ...limits import RequestError
from ..responses import EncodedArray, json_response
from .call_routes import Edge, Side, check_tile
from .route_parameters import (
    ARRAY,
    ERRORS,
    CallId,
    Head,
    Heads,
    Pooling,
    Span,
    TraceId,
    call_of,
    call_shape,
    check_cells,
    check_head,
    heads_of,
    jobs_of,
    span_of,
)

if TYPE_CHECKING:
    from ...data.trace_view import TraceView
    from ..request_computations import Jobs

router = APIRouter(prefix="/traces/{trace}")
MOST_ANSWERS = 1 << 24
Position = Annotated[int, Query(ge=0, le=limits.PLACES, description="The query whose answer is explained")]
Answer = Annotated[int, Query(ge=0, lt=MOST_ANSWERS, description="The answer: a token, label or position, by number")]
Minus = Annotated[int | None, Query(ge=0, lt=MOST_ANSWERS, description="Another, whose score is subtracted")]
CallHeads = Annotated[
    str,
    Query(pattern=r"^[0-9]{1,5}\.[0-9]{1,5}(,[0-9]{1,5}\.[0-9]{1,5}){0,63}$", description="call.head, such as 4.0,4.1"),
]
Word = Annotated[str | None, Query(min_length=1, max_length=80)]


@router.get("/answers", responses=ERRORS, response_model=dict[str, Any])
async def answers(
    request: Request,
    trace: TraceId,
    position: Annotated[int | None, Query(ge=0, le=limits.PLACES, description="Default: the last")] = None,
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


@router.get("/calls/{call}/contributions", responses=ARRAY, response_class=Response)
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


@router.get("/calls/{call}/contributions/tile", responses=ARRAY, response_class=Response)
async def tile(
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


@router.get("/silenced", responses=ERRORS, response_model=dict[str, Any])
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
