"""Layers: multi-head attention, position encodings, Transformer layers, recurrent cells with attention."""

from .fast_dropout import Dropout as Dropout
from .multihead_attention import MultiHead as MultiHead
from .packed_linear import linear as linear
from .packed_linear import packed_weights as packed_weights
from .positions import LearnedPositions as LearnedPositions
from .positions import RotaryPositions as RotaryPositions
from .positions import SinusoidalPositions as SinusoidalPositions
from .recurrent.encoder_memory import EncoderMemory as EncoderMemory
from .recurrent.local_attention import LocalAttention as LocalAttention
from .recurrent.lstmn import LSTMN as LSTMN
from .recurrent.rnn_cell import RecurrentCell as RecurrentCell
from .recurrent.rnn_layer import RecurrentLayer as RecurrentLayer
from .transformer_layers import DecoderLayer as DecoderLayer
from .transformer_layers import EncoderLayer as EncoderLayer
from .transformer_layers import FeedForward as FeedForward
