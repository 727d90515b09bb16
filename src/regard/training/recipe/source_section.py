"""How the source side of the data is read: [source]."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .data_section import Positive, StrictSection


class TextSource(StrictSection):
    """Words, tokenised."""

    kind: Literal["text"] = "text"


class PictureSource(StrictSection):
    """Pictures, each squeezed into a square."""

    kind: Literal["picture"] = "picture"
    size: Positive = Field(default=64, description="pixels a side")


class SoundSource(StrictSection):
    """Sounds, in one channel at one rate."""

    kind: Literal["sound"] = "sound"
    rate: Literal[8000] = Field(default=8000, description="samples a second, to which every sound is brought")


class NoSource(StrictSection):
    """No source: a language model."""

    kind: Literal["none"] = "none"


LONGEST = {"sound": 1000}
"""Kind of source → the default of data.longest, where it is not that of [data]: 10 seconds, in frames of 10 ms.

It is no setting of the parts that read sounds: as the last base of a recipe, a part would replace what another says.
"""

SourceSection = Annotated[TextSource | PictureSource | SoundSource | NoSource, Field(discriminator="kind")]
