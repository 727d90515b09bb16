"""Parameters that several routes take, and what they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Path, Query, Request
from pydantic import BaseModel

from .. import limits
from ..responses import RequestError

if TYPE_CHECKING:
    from ...data.trace_view import TraceView
    from ..jobs import Jobs

TraceId = Annotated[str, Path(pattern="^[0-9a-f]{1,40}$", description="A trace's id, from /api/traces")]
CallId = Annotated[int, Path(ge=0, le=100_000, description="Which call of the trace")]
Entry = Annotated[int, Query(ge=0, le=1 << 20, description="Which entry of the batch")]
Head = Annotated[int, Query(ge=0, le=1 << 16)]
Heads = Annotated[
    str | None, Query(pattern="^[0-9]{1,5}(,[0-9]{1,5}){0,511}$", description="Heads, as 0,3,5; all unless given")
]
Span = Annotated[
    str | None, Query(pattern="^[0-9]{0,8}:[0-9]{0,8}$", description="From the first up to the last, as 0:64")
]
Pooling = Annotated[Literal["max", "mean"], Query(description="What a cell shows of its weights")]
Numbers = Annotated[Literal["float32", "float16", "uint8"], Query(alias="type")]


class ErrorBody(BaseModel):
    """What went wrong, what was expected, what to do."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody, "description": words}
    for code, words in (
        (400, "Not a request"),
        (404, "There is no such thing"),
        (413, "More than one answer holds"),
        (422, "Not what is expected"),
        (503, "Too much is asked for at once"),
    )
}
HEADERS = {
    "X-Shape": {"description": "Its sizes, as 12,512,512", "schema": {"type": "string"}},
    "X-Type": {"description": "float32, float16 or uint8, little-endian", "schema": {"type": "string"}},
    "X-Peaks": {"description": "Of uint8: w = peak · (x / 255)², a peak for each matrix", "schema": {"type": "string"}},
}
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
ARRAY: dict[int | str, dict[str, Any]] = {
    200: {"description": "The numbers", "content": BYTES, "headers": HEADERS},
    304: {"description": "Unchanged"},
    **ERRORS,
}


def jobs_of(request: Request) -> Jobs:
    found: Jobs = request.app.state.jobs
    return found


def chosen(trace: TraceView, call: int, entry: int) -> tuple[int, int, int]:
    """Heads, queries and keys of a call that exists, of an entry that exists."""
    if call >= len(trace.seen):
        raise RequestError(404, f"there is no call {call}; the trace has {len(trace.seen)}, from 0")
    shape = trace.call(call).shape
    if len(shape) < 3:
        shape = (1, *shape)
    batch = shape[-4] if len(shape) > 3 else 1
    if entry >= batch:
        raise RequestError(404, f"there is no entry {entry}; the batch has {batch}, from 0")
    return shape[-3], shape[-2], shape[-1]


def heads_of(given: str | None, count: int) -> list[int]:
    if given is None:
        return list(range(count))
    found = [int(x) for x in given.split(",")]
    for head in found:
        check_head(head, count)
    return found


def check_head(head: int, count: int) -> None:
    if head >= count:
        raise RequestError(404, f"there is no head {head}; the call has {count}, from 0")


def span_of(given: str | None, count: int, what: str) -> range:
    """ "a:b" as a range; either may be left out."""
    if given is None:
        return range(count)
    first, last = given.split(":")
    found = range(int(first or 0), min(int(last or count), count))
    if not len(found):
        raise RequestError(422, f"{what} {given} are none: there are {count}, from 0")
    return found


def check_cells(*sizes: int) -> None:
    cells = 1
    for size in sizes:
        cells *= size
    if cells > limits.CELLS:
        shape = " × ".join(f"{size:,}" for size in sizes)
        raise RequestError(
            413, f"{shape} are {cells:,} numbers; at most {limits.CELLS:,} are given at once: ask for fewer"
        )
