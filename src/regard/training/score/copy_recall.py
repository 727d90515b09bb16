"""Copy recall: the share of unknown words of source and reference, names and numbers, that a translation has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...special_tokens import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import Pair, TokenizerPair


def copy_recall(texts: Sequence[str], pairs: Sequence[Pair], tokenizers: TokenizerPair) -> float | None:
    """Of the words that source and reference have and the vocabulary lacks, the share that the translation has.

    Each counts as often as the reference has it. None where there is no such word.
    """
    shared = [
        Counter(word for word in pair.target.split() if word in sources)
        for pair, sources in ((pair, set(pair.source.split())) for pair in pairs)
    ]
    words = sorted(set().union(*shared))
    unknown_ids = getattr(tokenizers.target, "unknown_words", None)
    unknown = {
        word
        for word, ids in zip(words, tokenizers.target.encode_batch(words), strict=True)
        if any(i == UNKNOWN or (unknown_ids is not None and i in unknown_ids) for i in ids)
    }
    total = right = 0
    for text, wanted in zip(texts, shared, strict=True):
        written = Counter(text.split())
        for word in wanted.keys() & unknown:
            total += wanted[word]
            right += min(wanted[word], written[word])
    return right / total if total else None
