"""A section of a recipe: typed, frozen, and strict about keys nobody knows."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class StrictSection(BaseModel):
    model_config = STRICT
