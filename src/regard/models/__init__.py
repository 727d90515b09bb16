"""Encoders × decoders: every system is one composition."""

from . import config
from .annotations import Annotations
from .classifier import Classifier
from .decoder import Decoded, Decoder, State
from .encoder import Encoder
from .loading import load
from .loss import Loss
from .writer import Writer

__all__ = [
    "Annotations",
    "Classifier",
    "Decoded",
    "Decoder",
    "Encoder",
    "Loss",
    "State",
    "Writer",
    "config",
    "load",
]
