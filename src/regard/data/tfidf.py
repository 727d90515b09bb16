"""Inverse document frequencies of a corpus, for TF-IDF weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float32

    from .encoded_corpus import EncodedCorpus


def idf(encoded: EncodedCorpus, vocabulary: int) -> Float32[np.ndarray, "vocabulary"]:
    """idf(x) = ln((1 + n) / (1 + n_x)) + 1, n the texts of a corpus and n_x those with x (Spärck Jones 1972).

    The ones keep a word that is everywhere from weighing nothing and one that is nowhere from weighing everything, as
    scikit-learn has it. TF is not here: a weight that is added for each time a word occurs is multiplied by its count.
    """
    text = np.repeat(np.arange(len(encoded)), encoded.source_lengths)
    once = np.unique(text * vocabulary + encoded.source)  # each word of each text
    texts_with_word = np.bincount(once % vocabulary, minlength=vocabulary)
    return (np.log((1 + len(encoded)) / (1 + texts_with_word)) + 1).astype(np.float32)
