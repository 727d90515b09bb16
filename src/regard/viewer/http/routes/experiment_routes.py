"""Routes for experiments on a model: a layer step by step, next tokens, a run with heads silenced or tokens hidden."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from ... import limits
from ...data.experiments import next_tokens, what_if
from ...data.inside_view import inside_view
from ..responses import json_response
from .route_parameters import ERRORS, jobs_of, session_of

router = APIRouter()
LONGEST = 2000
"""Characters of a text for an experiment, which runs the model twice and compares every weight."""


class ModelText(BaseModel):
    """A model and a text for it."""

    model_config = {"extra": "forbid"}
    model: str = Field(max_length=200)
    text: str = Field(min_length=1, max_length=LONGEST)


class InsideRequest(ModelText):
    layer: int = Field(default=0, ge=0)
    head: int = Field(default=0, ge=0)


class NextRequest(ModelText):
    text: str = Field(default="", max_length=limits.TEXT)
    temperature: float = Field(default=1.0, ge=0.05, le=10.0)


Index = Annotated[int, Field(ge=0)]


class WhatIfRequest(ModelText):
    silence: dict[str, list[Index]] = Field(default_factory=dict, max_length=64)
    hide: list[Index] = Field(default_factory=list, max_length=64)


@router.post("/inside", responses=ERRORS, response_model=dict[str, Any])
async def inside(request: Request, body: InsideRequest) -> Response:
    """One layer and head of a Transformer of regard: every matrix of the computation, and the steps that show them."""
    jobs = jobs_of(request)
    model = jobs.library.model(body.model, "translate", "generate")
    jobs.library.check_own(model)

    def compute() -> dict[str, Any]:
        return inside_view(jobs.library.loaded(model), body.text, body.layer, body.head)

    return json_response(await jobs.run_model(request, compute), request)


@router.post("/next", responses=ERRORS, response_model=dict[str, Any])
async def next_token(request: Request, body: NextRequest) -> Response:
    """The likeliest next tokens after a text, at a temperature."""
    jobs = jobs_of(request)
    model = jobs.library.model(body.model, "generate")
    function = partial(next_tokens, jobs.library, model, body.text, body.temperature)
    return json_response({"next": await jobs.run_model(request, function)}, request)


@router.post("/what-if", responses=ERRORS, response_model=dict[str, Any])
async def experiment(request: Request, body: WhatIfRequest) -> Response:
    """A text read as it is and with heads silenced or tokens hidden: predictions, changed heads, the new trace."""
    jobs = jobs_of(request)
    model = jobs.library.model(body.model, "translate", "read", "generate", "classify")
    function = partial(what_if, jobs.library, model, body.text, body.silence, body.hide, owner=session_of(request))
    return json_response(await jobs.run_model(request, function), request)
