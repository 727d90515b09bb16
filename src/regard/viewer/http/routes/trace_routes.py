"""What was watched, as a whole: its calls and tokens, thumbnails, statistics and patterns of all heads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from .... import __version__
from ...static_files import view_names
from .. import limits
from ..responses import Array, Refused, json_response
from .route_parameters import ARRAY, ERRORS, Entry, Pooling, TraceId, chosen, work_of

router = APIRouter()


class Asked(BaseModel):
    """A text for a model to read while it is watched."""

    model_config = {"extra": "forbid"}
    model: str = Field(max_length=200)
    text: str = Field(min_length=1, max_length=limits.TEXT)
    second: str | None = Field(default=None, min_length=1, max_length=limits.TEXT)
    generate: int = Field(default=0, ge=0, le=limits.GENERATED)


class Made(BaseModel):
    id: str


class Summary(BaseModel):
    id: str
    title: str
    model: str
    tokens: int
    calls: int
    faithful: bool | None


class ModelAbout(BaseModel):
    name: str
    task: Literal["translate", "read", "generate", "classify", "caption", "listen"]
    title: str


class About(BaseModel):
    version: str
    models: list[ModelAbout]
    traces: list[Summary]
    coming: int
    """Traces that are being made; ask again."""
    views: list[str]
    limits: dict[str, int]


class Statistics(BaseModel):
    """Of each call: entropies and the like of its heads, from `rows` of its queries."""

    calls: list[dict[str, Any]]


class Patterned(BaseModel):
    heads: list[dict[str, Any]]
    thresholds: dict[str, float]
    why: str


@router.get("/about", responses=ERRORS)
async def about(request: Request) -> About:
    """What there is to look at."""
    work = work_of(request)
    listed = [ModelAbout(name=x.name, task=x.task, title=x.title) for x in work.shelf.models.values()]  # type: ignore[arg-type]
    return About(
        version=__version__,
        models=listed,
        coming=len(work.shelf.coming),
        traces=await traces(request),
        views=view_names(),
        limits=limits.public(),
    )


@router.get("/traces", responses=ERRORS)
async def traces(request: Request) -> list[Summary]:
    work = work_of(request)
    found = list(work.shelf.traces.values())
    return [Summary(**one) for one in await work.do(request, lambda: [trace.summary for trace in found])]


@router.post("/traces", responses=ERRORS, status_code=201)
async def read(request: Request, asked: Asked) -> Made:
    """Run a model over a text and watch it. One at a time; others wait."""
    work = work_of(request)
    work.shelf.model(asked.model)

    read = await work.run(request, lambda: work.shelf.read(asked.model, asked.text, asked.second, asked.generate))
    return Made(id=read.id)


@router.get("/traces/{trace}", responses=ERRORS, response_model=dict[str, Any])
async def trace(request: Request, trace: TraceId, entry: Entry = 0) -> Response:
    """Its calls, in order, and the tokens along their sides."""
    work = work_of(request)
    found = work.shelf.trace(trace)
    if entry >= found.batch:
        raise Refused(404, f"there is no entry {entry}; the batch has {found.batch}, from 0")
    return json_response(await work.do(request, lambda: found.about(entry)), request)


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
    work = work_of(request)
    found = work.shelf.trace(trace)
    key = found.id, "thumbs", entry, size, pool
    kept = work.answers.get(key)
    if kept is None:
        parts, sampled = [], False
        for call in range(len(found.seen)):
            chosen(found, call, entry)
            part, some = await work.do(request, lambda call=call: found.thumb(call, entry, size, pool))  # type: ignore[misc]
            parts.append(part)
            sampled |= some
        kept = Array.of(torch.cat(parts), "uint8", note="a row of cells shows one query" if sampled else "")
        work.keep(work.answers, key, kept, len(kept.data))
    return kept.response(request)


@router.get("/traces/{trace}/stats", responses=ERRORS)
async def stats(request: Request, trace: TraceId, entry: Entry = 0) -> Statistics:
    """Of every head: entropy, confidence (mean largest weight), sink (mean weight on the first key), prompt."""
    work = work_of(request)
    found = work.shelf.trace(trace)
    calls = []
    for call in range(len(found.seen)):
        chosen(found, call, entry)
        calls.append(await work.do(request, lambda call=call: found.statistics(call, entry)))  # type: ignore[misc]
    return Statistics(calls=calls)


@router.get("/traces/{trace}/patterns", responses=ERRORS)
async def patterns(request: Request, trace: TraceId, entry: Entry = 0) -> Patterned:
    """What each head does, by the published definitions: scores, labels, p; or why nothing can be said."""
    work = work_of(request)
    found = work.shelf.trace(trace)
    if entry >= found.batch:
        raise Refused(404, f"there is no entry {entry}; the batch has {found.batch}, from 0")
    return Patterned(**await work.do(request, lambda: found.patterns(entry)))
