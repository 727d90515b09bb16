"""What is there for speed alone: packed matrices, dropout, gates of recurrent cells."""

from .packed import Dropout as Dropout
from .packed import linear as linear
from .packed import packed_weights as packed_weights
