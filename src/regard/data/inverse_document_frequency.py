"""Inverse document frequency (Spärck Jones 1972): how rare a word is among texts."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Float64, Int

IdfFormula = Literal["smoothed", "plain"]

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def inverse_document_frequency(
    texts_with_token: Int[np.ndarray, "tokens"], texts: int, formula: IdfFormula
) -> Float64[np.ndarray, "tokens"]:
    """`texts_with_token` is n_j, the number of texts with token j, and `texts` is N.

    plain: log(N / n_j), which is 0 for a token of every text; one of no text counts as one of a single text.
    smoothed: log((1 + N) / (1 + n_j)) + 1, as in scikit-learn, which is never 0 and defined for n_j = 0.
    """
    if formula == "plain":
        return np.asarray(np.log(max(texts, 1) / np.maximum(texts_with_token, 1)))
    return np.asarray(np.log((1 + texts) / (1 + texts_with_token)) + 1)


def document_counts(texts: Iterable[str]) -> Counter[str]:
    """The number of texts with each word, in lower case; a word is letters and digits, with apostrophes inside."""
    return Counter(word for text in texts for word in set(_WORD.findall(text.lower())))
