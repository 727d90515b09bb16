"""Encoders × decoders: every system is one composition."""

from . import config
from .annotations import Annotations
from .decoder import Decoded, Decoder, State
from .encoder import Encoder
from .loss import Loss
from .writer import Writer

__all__ = ["Annotations", "Decoded", "Decoder", "Encoder", "Loss", "State", "Writer", "config"]
