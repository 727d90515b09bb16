"""What was watched, as a whole: its calls and tokens, thumbnails, statistics and patterns of all heads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from .... import __version__
from ...static_files import view_names
from .. import limits
from ..responses import EncodedArray, RequestError, json_response
from .route_parameters import ARRAY, ERRORS, Entry, Pooling, TraceId, chosen, jobs_of

router = APIRouter()


class ReadRequest(BaseModel):
    """A text for a model to read while it is watched."""

    model_config = {"extra": "forbid"}
    model: str = Field(max_length=200)
    text: str = Field(min_length=1, max_length=limits.TEXT)
    second: str | None = Field(default=None, min_length=1, max_length=limits.TEXT)
    generate: int = Field(default=0, ge=0, le=limits.GENERATED)


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


class ServerInfo(BaseModel):
    version: str
    models: list[ModelSummary]
    traces: list[TraceSummary]
    coming: int
    """Traces that are being made; ask again."""
    views: list[str]
    limits: dict[str, int]


class HeadStatistics(BaseModel):
    """Of each call: entropies and the like of its heads, from `rows` of its queries."""

    calls: list[dict[str, Any]]


class HeadPatterns(BaseModel):
    heads: list[dict[str, Any]]
    thresholds: dict[str, float]
    why: str


@router.get("/about", responses=ERRORS)
async def about(request: Request) -> ServerInfo:
    """What there is to look at."""
    jobs = jobs_of(request)
    listed = [ModelSummary(name=x.name, task=x.task, title=x.title) for x in jobs.library.models.values()]  # type: ignore[arg-type]
    return ServerInfo(
        version=__version__,
        models=listed,
        coming=len(jobs.library.coming),
        traces=await traces(request),
        views=view_names(),
        limits=limits.public(),
    )


@router.get("/traces", responses=ERRORS)
async def traces(request: Request) -> list[TraceSummary]:
    jobs = jobs_of(request)
    found = list(jobs.library.traces.values())
    return [TraceSummary(**one) for one in await jobs.do(request, lambda: [trace.summary for trace in found])]


@router.post("/traces", responses=ERRORS, status_code=201)
async def read(request: Request, asked: ReadRequest) -> TraceCreated:
    """Run a model over a text and watch it. One at a time; others wait."""
    jobs = jobs_of(request)
    jobs.library.model(asked.model)

    read = await jobs.run(request, lambda: jobs.library.read(asked.model, asked.text, asked.second, asked.generate))
    return TraceCreated(id=read.id)


@router.get("/traces/{trace}", responses=ERRORS, response_model=dict[str, Any])
async def trace(request: Request, trace: TraceId, entry: Entry = 0) -> Response:
    """Its calls, in order, and the tokens along their sides."""
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    if entry >= found.batch:
        raise RequestError(404, f"there is no entry {entry}; the batch has {found.batch}, from 0")
    return json_response(await jobs.do(request, lambda: found.about(entry)), request)


@router.get("/traces/{trace}/thumbs", responses=ARRAY, response_class=Response)
async def thumbs(
    request: Request,
    trace: TraceId,
    entry: Entry = 0,
    size: Annotated[int, Query(ge=1, le=128, description="Cells along a side")] = 32,
    pool: Pooling = "max",
) -> Response:
    """Every head of every call as a small picture: uint8 [heads of all calls, size, size], a peak for each.

    Of long texts each row of cells shows a single query, and X-Note says so.
    """
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    key = found.id, "thumbs", entry, size, pool
    kept = jobs.answers.get(key)
    if kept is None:
        parts, sampled = [], False
        for call in range(len(found.seen)):
            chosen(found, call, entry)
            part, some = await jobs.do(request, lambda call=call: found.thumb(call, entry, size, pool))  # type: ignore[misc]
            parts.append(part)
            sampled |= some
        kept = EncodedArray.of(torch.cat(parts), "uint8", note="a row of cells shows one query" if sampled else "")
        jobs.keep(jobs.answers, key, kept, len(kept.data))
    return kept.response(request)


@router.get("/traces/{trace}/stats", responses=ERRORS)
async def stats(request: Request, trace: TraceId, entry: Entry = 0) -> HeadStatistics:
    """Of every head: entropy, confidence (mean largest weight), sink (mean weight on the first key), prompt."""
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    calls = []
    for call in range(len(found.seen)):
        chosen(found, call, entry)
        calls.append(await jobs.do(request, lambda call=call: found.statistics(call, entry)))  # type: ignore[misc]
    return HeadStatistics(calls=calls)


@router.get("/traces/{trace}/patterns", responses=ERRORS)
async def patterns(request: Request, trace: TraceId, entry: Entry = 0) -> HeadPatterns:
    """What each head does, by the published definitions: scores, labels, p; or why nothing can be said."""
    jobs = jobs_of(request)
    found = jobs.library.trace(trace)
    if entry >= found.batch:
        raise RequestError(404, f"there is no entry {entry}; the batch has {found.batch}, from 0")
    return HeadPatterns(**await jobs.do(request, lambda: found.patterns(entry)))
