"""Parts made of the formula: multi-head attention, positions, Transformer blocks, attentive recurrent cells."""

from .dropout import Dropout
from .multihead_attention import MultiHead
from .positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from .recurrent.encoder_memory import EncoderMemory
from .recurrent.local_attention import LocalAttention
from .recurrent.lstmn import LSTMN
from .recurrent.rnn_cell import RecurrentCell
from .recurrent.rnn_layer import RecurrentLayer
from .transformer_layers import DecoderLayer, EncoderLayer, FeedForward

__all__ = [
    "LSTMN",
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "EncoderMemory",
    "FeedForward",
    "LearnedPositions",
    "LocalAttention",
    "MultiHead",
    "RecurrentCell",
    "RecurrentLayer",
    "RotaryPositions",
    "SinusoidalPositions",
]
