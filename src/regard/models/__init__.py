"""Encoders × decoders: every system is one composition."""

from . import config
from .annotations import Annotations
from .classifier import Classifier
from .cross_entropy import Loss
from .decoders.decoder import Decoded, Decoder, State
from .encoder_decoder import Writer
from .encoders.encoder import Encoder
from .load_model import load

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
