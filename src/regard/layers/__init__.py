"""Layers: multi-head attention, position encodings, Transformer layers, recurrent cells with attention."""

from .kernels.packed_products import Dropout as Dropout
from .kernels.packed_products import linear as linear
from .kernels.packed_products import packed_weights as packed_weights
from .positions import LearnedPositions as LearnedPositions
from .positions import RotaryPositions as RotaryPositions
from .positions import SinusoidalPositions as SinusoidalPositions
from .recurrent import LSTMN as LSTMN
from .recurrent import LocalAttention as LocalAttention
from .recurrent import RecurrentCell as RecurrentCell
from .recurrent import RecurrentLayer as RecurrentLayer
from .transformer import DecoderLayer as DecoderLayer
from .transformer import EncoderLayer as EncoderLayer
from .transformer import FeedForward as FeedForward
from .transformer import MultiHead as MultiHead
