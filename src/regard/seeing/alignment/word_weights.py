"""Words: weights between words from weights between the pieces a tokenizer makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..analysis.token_kinds import MARKS
from .alignment_error import words as between_words

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..analysis.token_kinds import Text


def grouped(text: Text) -> tuple[list[int], list[str]]:
    """For each piece the number of its word, and the words. A special token is a word of its own."""
    if text.words is None:
        raise ValueError("this text does not know its words: a fast tokenizer is needed to say which piece is whose")
    numbers: list[int] = []
    names: list[str] = []
    before: object = object()
    for piece, word in zip(text.tokens, text.words, strict=True):
        side = None if text.segments is None else int(text.segments[len(numbers)])
        if word is None or (side, word) != before:
            names.append(piece.strip(MARKS))
        else:
            names[-1] += piece.removeprefix("##").strip(MARKS)
        before = (side, word)
        numbers.append(len(names) - 1)
    return numbers, names


def word_weights(
    weights: Float[Tensor, "*maps q k"], text: Text
) -> tuple[Float[Tensor, "*maps words words"], list[str]]:
    """Weights between words, and the words: summed *to* a word's pieces, averaged *from* them (Clark et al. 2019)."""
    numbers, names = grouped(text)
    return between_words(weights, numbers, numbers), names
