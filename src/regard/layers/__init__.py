"""Parts made of the formula: multi-head attention, positions, Transformer blocks, attentive recurrent cells."""

from .dropout import Dropout
from .multihead_attention import MultiHead
from .positions import Learned, Rotary, Sinusoidal
from .recurrent.encoder_memory import Memory
from .recurrent.local_attention import Local
from .recurrent.lstmn import LSTMN
from .recurrent.rnn_cell import Cell
from .recurrent.rnn_layer import Recurrence
from .transformer_layers import DecoderLayer, EncoderLayer, FeedForward

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
