"""Parts made of the formula: multi-head attention, positions, Transformer blocks, attentive recurrent cells."""

from .blocks import DecoderLayer, EncoderLayer, FeedForward
from .cell import Cell
from .dropout import Dropout
from .local import Local
from .lstmn import LSTMN
from .memory import Memory
from .multihead import MultiHead
from .positions import Learned, Rotary, Sinusoidal
from .recurrence import Recurrence

__all__ = [
    "LSTMN",
    "Cell",
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "FeedForward",
    "Learned",
    "Local",
    "Memory",
    "MultiHead",
    "Recurrence",
    "Rotary",
    "Sinusoidal",
]
