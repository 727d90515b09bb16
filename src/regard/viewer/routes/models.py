"""Models at work: translations with their alignments, and how they were found."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from .. import limits
from ..answers import Refused, json_response
from ..translating import translated
from .parameters import ERRORS, work_of

router = APIRouter()


class Sentence(BaseModel):
    """A sentence to translate by some of the translators there are."""

    model_config = {"extra": "forbid"}
    text: str = Field(min_length=1, max_length=limits.TEXT)
    models: list[str] = Field(min_length=1, max_length=limits.MODELS)
    beams: int = Field(default=5, ge=1, le=limits.BEAMS)


@router.post("/translate", responses=ERRORS, response_model=dict[str, Any])
async def translate(request: Request, asked: Sentence) -> Response:
    """Each model's translation, the weights behind it, and the beam at every step."""
    work = work_of(request)
    found = [work.shelf.model(name, "translate") for name in dict.fromkeys(asked.models)]
    told = []
    for model in found:

        def run(model: Any = model) -> dict[str, Any]:
            try:
                return translated(work.shelf.translator(model), model, asked.text, asked.beams)
            except (ValueError, OSError) as error:
                raise Refused(422, " ".join(str(error).split())) from None

        told.append(await work.do(request, run, desk=work.models))
    return json_response({"translations": told}, request)
