"""Routes of whole traces: the list, making one, its calls and tokens, thumbnails, statistics and head patterns."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from .... import __version__
from ... import limits
from ...static_files import view_names
from ..responses import EncodedArray, json_response
from .route_parameters import ARRAY, ERRORS, Entry, Pooling, TraceId, call_shape, check_entry, jobs_of, session_of

router = APIRouter()


class ReadRequest(BaseModel):
    """A text that a model reads while its attention is watched."""

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


@router.get("/token", responses=ERRORS)
async def token(request: Request) -> TokenInfo:
    """The token of this server, for a link that opens in another browser; null where it asks for none."""
    return TokenInfo(token=request.state.token)


@router.get("/about", responses=ERRORS)
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
        limits=limits.public(),
    )


@router.get("/traces", responses=ERRORS)
async def traces(request: Request) -> list[TraceSummary]:
    jobs = jobs_of(request)
    views = jobs.library.listed(session_of(request))
    return [TraceSummary(**x) for x in await jobs.run(request, lambda: [view.summary for view in views])]


@router.post("/traces", responses=ERRORS, status_code=201)
async def read(request: Request, body: ReadRequest) -> TraceCreated:
    """Run a model over a text and watch it. Models run one at a time."""
    jobs = jobs_of(request)
    jobs.library.model(body.model)
    function = partial(jobs.library.read, body.model, body.text, body.second, body.generate, owner=session_of(request))
    return TraceCreated(id=(await jobs.run_model(request, function)).id)


@router.get("/traces/{trace}", responses=ERRORS, response_model=dict[str, Any])
async def trace(request: Request, trace: TraceId, entry: Entry = 0) -> Response:
    """The calls of a trace, in order, and the tokens along their sides."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    check_entry(entry, view.batch)
    return json_response(await jobs.run(request, partial(view.describe, entry)), request)


@router.get("/traces/{trace}/thumbs", responses=ARRAY, response_class=Response)
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


@router.get("/traces/{trace}/stats", responses=ERRORS)
async def stats(request: Request, trace: TraceId, entry: Entry = 0) -> HeadStatistics:
    """For every head: entropy, confidence (mean largest weight), sink (mean weight on the first key), prompt."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    calls = []
    for call in range(len(view.seen)):
        call_shape(view, call, entry)
        calls.append(await jobs.run(request, partial(view.statistics, call, entry)))
    return HeadStatistics(calls=calls)


@router.get("/traces/{trace}/patterns", responses=ERRORS)
async def patterns(request: Request, trace: TraceId, entry: Entry = 0) -> HeadPatterns:
    """The pattern scores, labels and p-values of each head, or why there are none."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    check_entry(entry, view.batch)
    return HeadPatterns(**await jobs.run(request, partial(view.patterns, entry)))
