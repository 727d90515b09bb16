"""Opening a model's folder, whatever kind of model it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .classifier import Classifier
from .encoder_decoder import EncoderDecoder
from .pretrained_model import read

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[str, type[EncoderDecoder | Classifier]] = {kind.model_type: kind for kind in (EncoderDecoder, Classifier)}


def load(folder: str | Path) -> EncoderDecoder | Classifier:
    """What `save_pretrained` wrote, on the CPU and in evaluation mode; config.json says what it is."""
    kind, _ = read(folder)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{folder}/config.json is of model_type {kind!r:.60}; known are {', '.join(sorted(KINDS))}")
    return KINDS[kind].from_pretrained(folder)
