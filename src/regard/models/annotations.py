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
    vectors. `tape`, where an encoder has one, holds the memories beside the vectors (LSTMN). Places at and past
    `lengths` are padding; nothing may depend on them.
    """

    vectors: Float[Tensor, "batch places width"]
    lengths: Int[Tensor, "batch"]
    summary: Float[Tensor, "batch width"]
    tape: Float[Tensor, "batch places width"] | None = None

    def select(self, rows: Int[Tensor, "chosen"]) -> Annotations:
        """The annotations of these sentences, in this order."""
        tape = None if self.tape is None else self.tape[rows]
        return Annotations(self.vectors[rows], self.lengths[rows], self.summary[rows], tape)
