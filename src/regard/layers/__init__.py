"""Layers: multi-head attention, position encodings, Transformer layers, recurrent cells with attention."""

from .encoder_memory import EncoderMemory as EncoderMemory
from .encoder_memory import LocalAttention as LocalAttention
from .kernels.dropout import Dropout as Dropout
from .kernels.packed import linear as linear
from .kernels.packed import packed_weights as packed_weights
from .lstmn import LSTMN as LSTMN
from .multihead_attention import MultiHead as MultiHead
from .positions import LearnedPositions as LearnedPositions
from .positions import RotaryPositions as RotaryPositions
from .positions import SinusoidalPositions as SinusoidalPositions
from .recurrent import RecurrentCell as RecurrentCell
from .recurrent import RecurrentLayer as RecurrentLayer
from .transformer_layers import DecoderLayer as DecoderLayer
from .transformer_layers import EncoderLayer as EncoderLayer
from .transformer_layers import FeedForward as FeedForward
