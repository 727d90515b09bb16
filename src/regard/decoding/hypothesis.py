"""A hypothesis: one output of a search, with its score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass
class Hypothesis:
    """The tokens between <s> and </s>; the score it was ranked by; and log p(y | x), </s> included.

    `logprob` is NaN where an engine does not give it, see `CTranslate2`.

    `weights`, where requested, has one row more than there are tokens: the last belongs to </s>. A Transformer has one
    map per layer and head, an RNN one.
    """

    tokens: list[int]
    score: float
    logprob: float
    weights: Float[Tensor, "maps target places"] | None = None
