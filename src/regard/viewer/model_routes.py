"""Routes that run models: on a text, a picture or a sound, and with a part of the model changed or shown."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from . import guard, outputs
from .contributions import next_tokens, what_if
from .inside import inside_view
from .library import PICTURE, SOUND, sample_files
from .responses import BYTES, ERRORS, JSON

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tiles import Jobs

model_router = APIRouter(responses=ERRORS)
UPLOAD = {"requestBody": {"required": True, "content": BYTES}}
"""The body is the file itself, of any content type."""
BLEU_BY_LENGTH = Path(__file__).parent / "data" / "bleu_by_length.json"
"""Written by tools/results_page.py from the runs of docs/results.md."""
LONGEST = 2000
"""Characters of a text for an experiment, which runs the model twice and compares every weight."""


class TextRequest(BaseModel):
    """A text, and the models to run on it."""

    model_config = {"extra": "forbid"}
    text: str = Field(min_length=1, max_length=guard.TEXT, pattern=r"\S")
    models: list[str] = Field(min_length=1, max_length=guard.MODELS)


class TranslateRequest(TextRequest):
    beams: int = Field(default=5, ge=1, le=guard.BEAMS)


class ModelText(BaseModel):
    """A model and a text for it."""

    model_config = {"extra": "forbid"}
    model: str = Field(max_length=200)
    text: str = Field(min_length=1, max_length=LONGEST)


class InsideRequest(ModelText):
    layer: int = Field(default=0, ge=0)
    head: int = Field(default=0, ge=0)


class NextRequest(ModelText):
    text: str = Field(default="", max_length=guard.TEXT)
    temperature: float = Field(default=1.0, ge=0.05, le=10.0)


Index = Annotated[int, Field(ge=0)]


class WhatIfRequest(ModelText):
    silence: dict[str, list[Index]] = Field(default_factory=dict, max_length=64)
    hide: list[Index] = Field(default_factory=list, max_length=64)


@model_router.get("/length")
async def length() -> Response:
    """BLEU by sentence length, with and without attention (Bahdanau et al. 2015, figure 2).

    `curves`, one for each translator and corpus, have points of (words in the source, BLEU, sentences).
    """
    return JSON(json.loads(BLEU_BY_LENGTH.read_text(encoding="utf-8")))


@model_router.get("/samples")
async def samples() -> Response:
    """Pictures and sounds to try the models with: `pictures` and `sounds`, each {name, type, data in base64}."""
    kinds = {"pictures": (PICTURE, "image/png"), "sounds": (SOUND, "audio/wav")}
    content = {
        kind: [
            {"name": path.stem, "type": type, "data": base64.b64encode(path.read_bytes()).decode()}
            for path in sample_files(suffix)
        ]
        for kind, (suffix, type) in kinds.items()
    }
    return JSON(content)


@model_router.post("/translate")
async def translate(request: Request, body: TranslateRequest) -> Response:
    """The translation of each model, its alignment weights, and the beam at every step."""
    results = await _results(request, body, "translate", partial(outputs.translation, beams=body.beams))
    return JSON({"translations": results})


@model_router.post("/classify")
async def classify(request: Request, body: TextRequest) -> Response:
    """The label of each model for a text, and the weight of every token."""
    return JSON({"classifications": await _results(request, body, "classify", outputs.text_classification)})


async def _results(request: Request, body: TextRequest, task: str, function: Callable[..., Any]) -> list[Any]:
    jobs: Jobs = request.app.state.jobs
    models = [jobs.library.model(name, task) for name in dict.fromkeys(body.models)]
    return [await jobs.run_model(request, partial(function, jobs.library, model, body.text)) for model in models]


@model_router.post("/caption", openapi_extra=UPLOAD)
async def caption(request: Request) -> Response:
    """The caption of a picture (PNG, JPEG, WebP, …) by the first captioner, and its weights for each word."""
    jobs, picture = request.app.state.jobs, await request.body()
    model = jobs.library.models_for("caption")[0]
    return JSON(await jobs.run_model(request, partial(outputs.caption, jobs.library, model, picture)))


@model_router.post("/listen", openapi_extra=UPLOAD)
async def listen(request: Request) -> Response:
    """The label of a sound (WAV, FLAC, OGG), its letters where a model transcribes, and the weights over time."""
    jobs, sound = request.app.state.jobs, await request.body()
    models = jobs.library.models_for("listen")[: guard.MODELS]
    return JSON(await jobs.run_model(request, partial(outputs.sound_classification, jobs.library, models, sound)))


@model_router.post("/inside")
async def inside(request: Request, body: InsideRequest) -> Response:
    """One layer and head of a Transformer of regard: every matrix of the computation, and the steps that show them."""
    jobs = request.app.state.jobs
    model = jobs.library.model(body.model, "translate", "generate")
    jobs.library.check_own(model)

    def compute() -> dict[str, Any]:
        return inside_view(jobs.library.loaded(model), body.text, body.layer, body.head)

    return JSON(await jobs.run_model(request, compute))


@model_router.post("/next")
async def next_token(request: Request, body: NextRequest) -> Response:
    """The likeliest next tokens after a text, at a temperature."""
    jobs = request.app.state.jobs
    model = jobs.library.model(body.model, "generate")
    function = partial(next_tokens, jobs.library, model, body.text, body.temperature)
    return JSON({"next": await jobs.run_model(request, function)})


@model_router.post("/what-if")
async def experiment(request: Request, body: WhatIfRequest) -> Response:
    """A text read as it is and with heads silenced or tokens hidden: predictions, changed heads, the new trace."""
    jobs = request.app.state.jobs
    model = jobs.library.model(body.model, "translate", "read", "generate", "classify")
    owner = request.state.session
    function = partial(what_if, jobs.library, model, body.text, body.silence, body.hide, owner=owner)
    return JSON(await jobs.run_model(request, function))
