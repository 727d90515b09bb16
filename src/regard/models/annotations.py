"""What an encoder gives and every decoder reads: annotation vectors with a mask, the common representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass
class Annotations:
    """One vector per place of the source (a word, a piece of a picture, a moment of sound), and what sums them up.

    `summary` is what a decoder without attention starts from: the last state of an RNN, the mean of a Transformer's
    vectors. Places at and past `lengths` are padding; nothing may depend on them.
    """

    vectors: Float[Tensor, "batch places width"]
    lengths: Int[Tensor, "batch"]
    summary: Float[Tensor, "batch width"]

    def select(self, rows: Int[Tensor, "chosen"]) -> Annotations:
        """The annotations of these sentences, in this order."""
        return Annotations(self.vectors[rows], self.lengths[rows], self.summary[rows])
