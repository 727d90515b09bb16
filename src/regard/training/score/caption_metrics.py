"""Scores of captions with several references: BLEU-1 to 4, CIDEr-D and chrF, of lowercased words, no punctuation."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from ...noun_count import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    Grams = Counter[tuple[str, ...]]

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0  # of CIDEr-D: how much a difference in length matters
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def bleu(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Corpus BLEU-1, -2, -3 and -4, in percent (Papineni et al. 2002):

        BLEU-N = min(1, exp(1 − r / c)) · (Π_{n ≤ N} p_n)^{1/N}

    p_n is the share of a caption's n-grams that are in some reference, each counted as often as in the reference that
    has it most often; c is the length of all captions, r that of the references nearest to each in length.
    """
    _check(captions, references)
    right, total = dict.fromkeys(ORDERS, 0), dict.fromkeys(ORDERS, 0)
    long = nearest = 0
    for caption, several in zip(captions, references, strict=True):
        hypothesis, truths = words(caption), [words(text) for text in several]
        long += len(hypothesis)
        nearest += min((abs(len(truth) - len(hypothesis)), len(truth)) for truth in truths)[1]
        for n in ORDERS:
            most: Grams = Counter()
            for truth in truths:
                most |= _grams(truth, n)
            grams = _grams(hypothesis, n)
            right[n] += (grams & most).total()
            total[n] += grams.total()
    short = min(1.0, math.exp(1 - nearest / long)) if long else 0.0
    scores, logs = [], 0.0
    for n in ORDERS:
        logs += math.log(right[n] / total[n]) if right[n] else -math.inf
        scores.append(100 * short * math.exp(logs / n))
    return scores


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """CIDEr-D, 10 being a caption that is its only reference (Vedantam et al. 2015, section 4; usually written × 100).

    The mean over n = 1 … 4, references and pictures of

        10 · exp(−(l_c − l_s)² / 2σ²) · Σ_g min(c_g, s_g) s_g / (|c| |s|)

    with c_g, s_g the TF-IDF of an n-gram in the caption and in a reference: how often it comes in it × log(pictures /
    pictures with it in some reference), and l the numbers of words; σ = 6.
    """
    _check(captions, references)
    truths = [[words(text) for text in several] for several in references]
    known: Grams = Counter()
    for several in truths:
        known.update({gram for truth in several for n in ORDERS for gram in _grams(truth, n)})
    pictures = math.log(len(captions))

    def weighed(grams: Grams) -> dict[tuple[str, ...], float]:
        return {gram: count * (pictures - math.log(max(known[gram], 1))) for gram, count in grams.items()}

    total = 0.0
    for caption, several in zip(captions, truths, strict=True):
        hypothesis = words(caption)
        for n in ORDERS:
            c = weighed(_grams(hypothesis, n))
            for truth in several:
                s = weighed(_grams(truth, n))
                size = _norm(c) * _norm(s)
                alike = sum(min(value, s[gram]) * s[gram] for gram, value in c.items() if gram in s)
                near = math.exp(-((len(hypothesis) - len(truth)) ** 2) / (2 * SIGMA**2))
                total += near * alike / size / len(several) if size else 0.0
    return 10 * total / len(ORDERS) / len(captions)


def chrf(captions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """chrF2 as sacreBLEU computes it, each caption against its most similar reference (Popović 2015)."""
    _check(captions, references)
    from .bleu import sacrebleu_metrics

    most = max(len(several) for several in references)
    # sacreBLEU needs equally many references for each; repeating some does not change the best.
    streams = [[" ".join(words(several[i % len(several)])) for several in references] for i in range(most)]
    score: float = sacrebleu_metrics().CHRF().corpus_score([" ".join(words(text)) for text in captions], streams).score
    return score


def _grams(tokens: Sequence[str], n: int) -> Grams:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _norm(vector: dict[tuple[str, ...], float]) -> float:
    return math.sqrt(sum(value * value for value in vector.values()))


def _check(captions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not captions or len(captions) != len(references) or not all(references):
        raise ValueError(
            "captions are scored against one or more references each: given are "
            f"{count_of(len(captions), 'caption')} and {count_of(len(references), 'list')} of references, "
            f"{sum(not several for several in references)} of them empty"
        )
