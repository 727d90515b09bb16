"""Annotations: the output of every encoder and the input of every decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass
class Annotations:
    """One vector per position of the source (a word, a cell of a picture, a frame of sound), and a summary of them.

    A decoder without attention starts from `summary`: the last state of an RNN, the mean of a Transformer's vectors.
    `tape`, where an encoder has one, holds the memories beside the vectors (LSTMN). Positions at and past `lengths` are
    padding; nothing may depend on them.
    """

    vectors: Float[Tensor, "batch places width"]
    lengths: Int[Tensor, "batch"]
    summary: Float[Tensor, "batch width"]
    tape: Float[Tensor, "batch places width"] | None = None
    decoder: Int[Tensor, "batch"] | None = None
    """Which of several decoders reads each sentence, where there are several."""
    source: Int[Tensor, "batch places"] | None = None
    """The ids of the source, for a decoder that copies them."""

    def select(self, rows: Int[Tensor, "chosen"]) -> Annotations:
        """The annotations of these sentences, in this order."""
        tape = None if self.tape is None else self.tape[rows]
        decoder = None if self.decoder is None else self.decoder[rows]
        source = None if self.source is None else self.source[rows]
        return Annotations(self.vectors[rows], self.lengths[rows], self.summary[rows], tape, decoder, source)


def zero_padding(
    x: Float[Tensor, "batch places width"], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch places width"]:
    return x * (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]


def masked_mean(x: Float[Tensor, "batch places width"], lengths: Int[Tensor, "batch"]) -> Float[Tensor, "batch width"]:
    """The mean over each sentence, without its padding."""
    return (zero_padding(x, lengths).sum(1) / lengths[:, None]).to(x.dtype)
