"""BLEU and chrF as sacreBLEU computes them, over all sentences and by length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

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
