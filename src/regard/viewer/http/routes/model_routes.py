"""Models at work: translations with their alignments, texts and sounds named, pictures told."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from ...data.media_results import heard, named, told
from ...data.translation_view import translated
from .. import limits
from ..responses import json_response
from .route_parameters import BYTES, ERRORS, jobs_of

router = APIRouter()


FILE = {"requestBody": {"required": True, "content": BYTES}}
"""The body is a file as it is, of whatever content type."""


class TextRequest(BaseModel):
    """A text for some of the models there are."""

    model_config = {"extra": "forbid"}
    text: str = Field(min_length=1, max_length=limits.TEXT, pattern=r"\S")
    models: list[str] = Field(min_length=1, max_length=limits.MODELS)


class TranslateRequest(TextRequest):
    beams: int = Field(default=5, ge=1, le=limits.BEAMS)


LENGTH = Path(__file__).parents[2] / "data" / "bleu_by_length.json"
"""Written by tools/results_page.py from the runs of docs/results.md."""


@router.get("/length", responses=ERRORS, response_model=dict[str, Any])
async def length(request: Request) -> Response:
    """BLEU by the length of the sentence, with and without attention (Bahdanau et al. 2015, figure 2).

    `curves`, each of one translator on one corpus: its points are (words in the source, BLEU, sentences).
    """
    return json_response(json.loads(LENGTH.read_text(encoding="utf-8")), request)


@router.post("/translate", responses=ERRORS, response_model=dict[str, Any])
async def translate(request: Request, asked: TranslateRequest) -> Response:
    """Each model's translation, the weights behind it, and the beam at every step."""
    library = jobs_of(request).library
    answers = []
    for model in [library.model(name, "translate") for name in dict.fromkeys(asked.models)]:
        run = partial(translated, library, model, asked.text, asked.beams)
        answers.append(await jobs_of(request).run(request, run))
    return json_response({"translations": answers}, request)


@router.post("/classify", responses=ERRORS, response_model=dict[str, Any])
async def classify(request: Request, asked: TextRequest) -> Response:
    """What each model calls a text, and the weight of every token."""
    library = jobs_of(request).library
    answers = []
    for model in [library.model(name, "classify") for name in dict.fromkeys(asked.models)]:
        answers.append(await jobs_of(request).run(request, partial(named, library, model, asked.text)))
    return json_response({"classifications": answers}, request)


@router.post("/caption", responses=ERRORS, response_model=dict[str, Any], openapi_extra=FILE)
async def caption(request: Request) -> Response:
    """What a picture (PNG, JPEG, WebP, …) shows, in the words of the first captioner, and where it looked for each."""
    library, picture = jobs_of(request).library, await request.body()
    model = library.able("caption")[0]
    return json_response(await jobs_of(request).run(request, partial(told, library, model, picture)), request)


@router.post("/listen", responses=ERRORS, response_model=dict[str, Any], openapi_extra=FILE)
async def listen(request: Request) -> Response:
    """What a sound (WAV, FLAC, OGG) is called, spelled where a model spells; and when each listened to what."""
    library, sound = jobs_of(request).library, await request.body()
    models = library.able("listen")[: limits.MODELS]
    return json_response(
        await jobs_of(request).run(request, lambda: heard(map(library.loaded, models), sound)), request
    )
