"""Encoders × decoders: every system is one composition."""

from . import config
from .annotations import Annotations
from .decoder import Decoded, Decoder, State
from .loss import Loss
from .translator import Translator

__all__ = ["Annotations", "Decoded", "Decoder", "Loss", "State", "Translator", "config"]
