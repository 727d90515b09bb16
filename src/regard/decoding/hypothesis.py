"""One translation as a search found it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass
class Hypothesis:
    """The tokens between <s> and </s>; the score it was ranked by; and log p(y | x), </s> included.

    `logprob` is NaN where an engine does not tell, see `CTranslate2`.

    `weights`, where asked for, has one row more than there are tokens: the last is where the decoder looked when it
    ended the sentence. There is one map per layer and head of a Transformer, one of an RNN.
    """

    tokens: list[int]
    score: float
    logprob: float
    weights: Float[Tensor, "maps target places"] | None = None
