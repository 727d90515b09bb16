"""Routes that run models: translate and classify a text, caption a picture, classify or transcribe a sound."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from ... import limits
from ...data import model_outputs
from ...data.sample_files import PICTURE, SOUND, sample_files
from ..responses import json_response
from .route_parameters import BYTES, ERRORS, jobs_of

if TYPE_CHECKING:
    from collections.abc import Callable

router = APIRouter()
UPLOAD = {"requestBody": {"required": True, "content": BYTES}}
"""The body is the file itself, of any content type."""
BLEU_BY_LENGTH = Path(__file__).parents[2] / "data" / "bleu_by_length.json"
"""Written by tools/results_page.py from the runs of docs/results.md."""


class TextRequest(BaseModel):
    """A text, and the models to run on it."""

    model_config = {"extra": "forbid"}
    text: str = Field(min_length=1, max_length=limits.TEXT, pattern=r"\S")
    models: list[str] = Field(min_length=1, max_length=limits.MODELS)


class TranslateRequest(TextRequest):
    beams: int = Field(default=5, ge=1, le=limits.BEAMS)


@router.get("/length", responses=ERRORS, response_model=dict[str, Any])
async def length(request: Request) -> Response:
    """BLEU by sentence length, with and without attention (Bahdanau et al. 2015, figure 2).

    `curves`, one for each translator and corpus, have points of (words in the source, BLEU, sentences).
    """
    return json_response(json.loads(BLEU_BY_LENGTH.read_text(encoding="utf-8")), request)


@router.get("/samples", responses=ERRORS, response_model=dict[str, Any])
async def samples(request: Request) -> Response:
    """Pictures and sounds to try the models with: `pictures` and `sounds`, each {name, type, data in base64}."""
    kinds = {"pictures": (PICTURE, "image/png"), "sounds": (SOUND, "audio/wav")}
    content = {
        kind: [
            {"name": path.stem, "type": type, "data": base64.b64encode(path.read_bytes()).decode()}
            for path in sample_files(suffix)
        ]
        for kind, (suffix, type) in kinds.items()
    }
    return json_response(content, request)


@router.post("/translate", responses=ERRORS, response_model=dict[str, Any])
async def translate(request: Request, body: TranslateRequest) -> Response:
    """The translation of each model, its alignment weights, and the beam at every step."""
    results = await _results(request, body, "translate", partial(model_outputs.translation, beams=body.beams))
    return json_response({"translations": results}, request)


@router.post("/classify", responses=ERRORS, response_model=dict[str, Any])
async def classify(request: Request, body: TextRequest) -> Response:
    """The label of each model for a text, and the weight of every token."""
    results = await _results(request, body, "classify", model_outputs.text_classification)
    return json_response({"classifications": results}, request)


async def _results(request: Request, body: TextRequest, task: str, function: Callable[..., Any]) -> list[Any]:
    jobs = jobs_of(request)
    models = [jobs.library.model(name, task) for name in dict.fromkeys(body.models)]
    return [await jobs.run_model(request, partial(function, jobs.library, model, body.text)) for model in models]


@router.post("/caption", responses=ERRORS, response_model=dict[str, Any], openapi_extra=UPLOAD)
async def caption(request: Request) -> Response:
    """The caption of a picture (PNG, JPEG, WebP, …) by the first captioner, and its weights for each word."""
    jobs, picture = jobs_of(request), await request.body()
    model = jobs.library.models_for("caption")[0]
    function = partial(model_outputs.caption, jobs.library, model, picture)
    return json_response(await jobs.run_model(request, function), request)


@router.post("/listen", responses=ERRORS, response_model=dict[str, Any], openapi_extra=UPLOAD)
async def listen(request: Request) -> Response:
    """The label of a sound (WAV, FLAC, OGG), its letters where a model transcribes, and the weights over time."""
    jobs, sound = jobs_of(request), await request.body()
    models = jobs.library.models_for("listen")[: limits.MODELS]
    function = partial(model_outputs.sound_classification, jobs.library, models, sound)
    return json_response(await jobs.run_model(request, function), request)
