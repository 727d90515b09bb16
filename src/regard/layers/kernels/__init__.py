"""What is there for speed alone: packed matrices, dropout, gates of recurrent cells."""

from .cpu import Dropout as Dropout
from .cpu import linear as linear
from .cpu import packed_weights as packed_weights
