"""Parameters that several routes share: their types, how they are parsed, and their checks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Path as PathParameter, Query, Request
from pydantic import BaseModel

from ... import limits
from ...limits import RequestError

if TYPE_CHECKING:
    from ...data.trace_view import TraceView
    from ..request_computations import Jobs

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


class ErrorBody(BaseModel):
    """What is wrong, what was expected, what to do."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody, "description": words}
    for code, words in (
        (401, "The token is missing or wrong"),
        (403, "The request comes from a page of another site"),
        (404, "Not found"),
        (413, "The request is too large, or more than one response can hold"),
        (421, "The server is not called by the name in the header Host"),
        (422, "A body that is not JSON, an unknown key, or an invalid value"),
        (500, "The computation failed; the traceback is in the server's log"),
        (503, "Too many requests are waiting, or the answer took too long"),
    )
}
HEADERS = {
    "X-Shape": {"description": "The shape, such as 12,512,512", "schema": {"type": "string"}},
    "X-Type": {"description": "float32, float16 or uint8, little-endian", "schema": {"type": "string"}},
    "X-Peaks": {
        "description": "For uint8: w = peak · (x / 255)², one peak for each matrix",
        "schema": {"type": "string"},
    },
}
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
ARRAY: dict[int | str, dict[str, Any]] = {
    200: {"description": "The numbers", "content": BYTES, "headers": HEADERS},
    304: {"description": "Unchanged"},
    **ERRORS,
}


def jobs_of(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


def session_of(request: Request) -> str:
    """The session of the browser; empty for programs, which have no cookies."""
    return str(request.scope.get("state", {}).get("session", ""))


def call_of(request: Request, trace: str, call: int, entry: int) -> tuple[Jobs, TraceView, tuple[int, int, int]]:
    """The jobs, the trace and the shape of one of its calls; a 404 where there is none."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    return jobs, view, call_shape(view, call, entry)


def call_shape(trace: TraceView, call: int, entry: int) -> tuple[int, int, int]:
    """(heads, queries, keys) of a call; a 404 where the trace has no such call or batch entry."""
    if call >= len(trace.seen.calls):
        raise RequestError(404, f"there is no call {call}; the trace has {len(trace.seen.calls)}, counted from 0")
    shape = trace.seen.calls[call].shape
    if len(shape) < 3:
        shape = (1, *shape)
    check_entry(entry, shape[-4] if len(shape) > 3 else 1)
    return shape[-3], shape[-2], shape[-1]


def check_entry(entry: int, batch: int) -> None:
    if entry >= batch:
        raise RequestError(404, f"there is no entry {entry}; the batch has {batch}, counted from 0")


def heads_of(text: str | None, count: int) -> list[int]:
    if text is None:
        return list(range(count))
    heads = [int(x) for x in text.split(",")]
    for head in heads:
        check_head(head, count)
    return heads


def check_head(head: int, count: int) -> None:
    if head >= count:
        raise RequestError(404, f"there is no head {head}; the call has {count}, counted from 0")


def span_of(text: str | None, count: int, name: str) -> range:
    """The range of a slice "a:b"; either side may be empty."""
    if text is None:
        return range(count)
    start, stop = text.split(":")
    span = range(int(start or 0), min(int(stop or count), count))
    if not span:
        raise RequestError(422, f"{name} {text} is an empty range; there are {count}, counted from 0")
    return span


def check_cells(*sizes: int) -> None:
    cells = math.prod(sizes)
    if cells > limits.CELLS:
        shape = " × ".join(f"{size:,}" for size in sizes)
        raise RequestError(
            413, f"{shape} are {cells:,} numbers; one response holds at most {limits.CELLS:,}: request fewer"
        )
