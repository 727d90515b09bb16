"""Scores: BLEU and chrF (by sacreBLEU), CIDEr, error rates, labels, and how many words were copied."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..special_tokens import UNKNOWN
from ..wording import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..data.rows import Pair
    from ..data.tokenizer_pair import TokenizerPair

STEP, LAST = 5, 61  # sentences of 1–5 words, 6–10, …, 56–60, and 61 or more


@dataclass(frozen=True)
class Score:
    """A figure and, so that others can compute the same, the signature of how (Post 2018)."""

    value: float
    signature: str


@dataclass(frozen=True)
class LengthBin:
    """The sentences whose source has `low` to `high` words; `high` is 0 where there is no upper end."""

    low: int
    high: int
    sentences: int
    bleu: float

    @property
    def middle(self) -> float:
        return self.low + (STEP - 1) / 2

    @property
    def name(self) -> str:
        return f"{self.low}–{self.high}" if self.high else f"{self.low}+"


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenised: bool = False) -> Score:
    """Corpus BLEU (Papineni et al. 2002): on plain text, or with `tokenised` on the words that spaces separate.

    The two count different words: never put them in one column.
    """
    _check(hypotheses, references)
    # `force` turns off sacreBLEU's warning about tokenised text.
    metric = sacrebleu_metrics().BLEU(tokenize="none" if tokenised else None, force=True)
    score = metric.corpus_score(hypotheses, [references])
    return Score(score.score, str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2: the F-score of character n-grams, recall counted twice (Popović 2015)."""
    _check(hypotheses, references)
    metric = sacrebleu_metrics().CHRF()
    score = metric.corpus_score(hypotheses, [references])
    return Score(score.score, str(metric.get_signature()))


def by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], *, tokenised: bool = False
) -> list[LengthBin]:
    """BLEU of the sentences of each length of the source, in words: the figure of Bahdanau et al. 2014."""
    bins: dict[int, list[int]] = {}
    for i, source in enumerate(sources):
        words = max(len(source.split()), 1)
        bins.setdefault(min((words - 1) // STEP * STEP + 1, LAST), []).append(i)
    return [
        LengthBin(
            low,
            0 if low == LAST else low + STEP - 1,
            len(rows),
            bleu([hypotheses[i] for i in rows], [references[i] for i in rows], tokenised=tokenised).value,
        )
        for low, rows in sorted(bins.items())
    ]


def sacrebleu_metrics() -> Any:
    try:
        import sacrebleu
    except ModuleNotFoundError as missing:
        raise ValueError("scores need sacrebleu; install it with: pip install 'regard[train]'") from missing
    return sacrebleu


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"a score needs a reference for each translation, got {len(references)} for {len(hypotheses)}")


if TYPE_CHECKING:
    from collections.abc import Sequence

    Grams = Counter[tuple[str, ...]]

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0  # of CIDEr-D: how much a difference in length matters
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def caption_bleu(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Corpus BLEU-1, -2, -3 and -4, in percent (Papineni et al. 2002), as sacreBLEU computes them without smoothing."""
    texts, streams = _streams(captions, references)
    metrics = (
        sacrebleu_metrics().BLEU(tokenize="none", max_ngram_order=n, smooth_method="none", force=True) for n in ORDERS
    )
    return [float(metric.corpus_score(texts, streams).score) for metric in metrics]


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """CIDEr-D, 10 being a caption that is its only reference (Vedantam et al. 2015, section 4; usually written × 100).

    The mean over n = 1 … 4, references and pictures of

        10 · exp(−(l_c − l_s)² / 2σ²) · Σ_g min(c_g, s_g) s_g / (|c| |s|)

    with c_g, s_g the TF-IDF of an n-gram in the caption and in a reference: how often it comes in it × log(pictures /
    pictures with it in some reference), and l the numbers of words; σ = 6.
    """
    _check_captions(captions, references)
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


def caption_chrf(captions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """chrF2 as sacreBLEU computes it, each caption against its most similar reference (Popović 2015)."""
    return float(sacrebleu_metrics().CHRF().corpus_score(*_streams(captions, references)).score)


def _streams(captions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The words of captions and of their references as sacreBLEU takes them: equally many references for each.

    Repeating some changes neither the best one nor the counts of n-grams.
    """
    _check_captions(captions, references)
    most = max(len(several) for several in references)
    streams = [[" ".join(words(several[i % len(several)])) for several in references] for i in range(most)]
    return [" ".join(words(text)) for text in captions], streams


def _grams(tokens: Sequence[str], n: int) -> Grams:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _norm(vector: dict[tuple[str, ...], float]) -> float:
    return math.sqrt(sum(value * value for value in vector.values()))


def _check_captions(captions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not captions or len(captions) != len(references) or not all(references):
        raise ValueError(
            "captions are scored against one or more references each: given are "
            f"{count_of(len(captions), 'caption')} and {count_of(len(references), 'list')} of references, "
            f"{sum(not several for several in references)} of them empty"
        )


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


def distance(written: Sequence[object], reference: Sequence[object]) -> int:
    """The fewest insertions, deletions and substitutions that make one of the other (Levenshtein 1966)."""
    row = list(range(len(reference) + 1))  # row j: the distance of what was read so far to the first j of reference
    for i, mine in enumerate(written, 1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(reference, 1):
            diagonal, row[j] = row[j], min(diagonal + (mine != wanted), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def error_rate(written: Sequence[Sequence[object]], references: Sequence[Sequence[object]]) -> float:
    """Σ distance / Σ length of the references, over a corpus: of strings, the character error rate.

    It exceeds 1 where the texts are much longer than the references.
    """
    if len(written) != len(references):
        given = f"{count_of(len(written), 'text')} and {count_of(len(references), 'reference')}"
        raise ValueError(f"given are {given}; there must be one for each")
    total = sum(map(len, references))
    if not total:
        raise ValueError("the references are empty, so there is no error rate")
    return sum(map(distance, written, references)) / total


@dataclass(frozen=True)
class LabelScore:
    """The scores of a label, in percent:

        precision = right / answered,   recall = right / count,   F1 = 2 right / (answered + count)

    None where the denominator is 0: a label that was never answered, or that no row has.
    """

    count: int  # rows whose label it is
    precision: float | None
    recall: float | None
    f1: float
    answers: dict[str, int]  # how often each answer was given to these rows: a row of the confusion matrix


def by_label(answers: Sequence[str], pairs: Sequence[Pair], names: Iterable[str]) -> dict[str, LabelScore]:
    """Of every label that some row has or some answer is, in the order of `names`."""
    taken: dict[str, Counter[str]] = {}
    for answer, pair in zip(answers, pairs, strict=True):
        taken.setdefault(pair.target, Counter())[answer] += 1
    answered = Counter(answers)
    order = [name for name in names if name in taken or name in answered]
    return {name: _label(name, taken.get(name, Counter()), answered[name], order) for name in order}


def _label(name: str, taken: Counter[str], answered: int, order: list[str]) -> LabelScore:
    count, right = taken.total(), taken[name]
    return LabelScore(
        count,
        100 * right / answered if answered else None,
        100 * right / count if count else None,
        200 * right / (answered + count),
        {other: taken[other] for other in order if taken[other]},
    )
