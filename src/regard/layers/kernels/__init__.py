"""What is there for speed alone: packed matrices, dropout, gates of recurrent cells."""

from .packed_products import Dropout as Dropout
from .packed_products import linear as linear
from .packed_products import packed_weights as packed_weights
