"""Beam search for translations that contain given phrases: dynamic beam allocation (Post and Vilar 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..special_tokens import BEGIN, END
from .beam import NEVER, Hypothesis, topk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from ..models.configurations import Annotations
    from ..models.decoder import Decoder
    from .beam import Ranking

Progress = tuple[int, ...]
"""For each phrase, how many of its tokens the text ends in; all of them once the text has the phrase."""


@dataclass(frozen=True)
class PhraseMatcher:
    """Phrases that a text must contain, each in one piece, in any order; they may overlap."""

    phrases: tuple[tuple[int, ...], ...]
    fallbacks: tuple[tuple[int, ...], ...]
    """Of each phrase and number of tokens n: the longest proper ending of its first n tokens that it begins with."""

    @classmethod
    def of(cls, phrases: Sequence[Sequence[int]]) -> PhraseMatcher:
        different = tuple(dict.fromkeys(tuple(phrase) for phrase in phrases if phrase))
        return cls(different, tuple(_fallback(phrase) for phrase in different))

    @property
    def start(self) -> Progress:
        return (0,) * len(self.phrases)

    @property
    def total(self) -> int:
        """The number of tokens of all phrases."""
        return sum(map(len, self.phrases))

    def advance(self, progress: Progress, token: int) -> Progress:
        """After one more token."""
        after = []
        for phrase, fallback, n in zip(self.phrases, self.fallbacks, progress, strict=True):
            if n < len(phrase):
                while n and phrase[n] != token:
                    n = fallback[n]
                n += phrase[n] == token
            after.append(n)
        return tuple(after)

    def complete(self, progress: Progress) -> bool:
        return all(n == len(phrase) for phrase, n in zip(self.phrases, progress, strict=True))

    def wanted(self, progress: Progress) -> set[int]:
        """The tokens that continue a phrase which is not complete."""
        return {phrase[n] for phrase, n in zip(self.phrases, progress, strict=True) if n < len(phrase)}

    def missing(self, progress: Progress) -> int:
        """As many tokens suffice to complete all phrases: one goes on where it is, the others begin again."""
        open_phrases = [(len(p), n) for p, n in zip(self.phrases, progress, strict=True) if n < len(p)]
        return sum(length for length, _ in open_phrases) - max((n for _, n in open_phrases), default=0)


def _fallback(phrase: tuple[int, ...]) -> tuple[int, ...]:
    table, n = [0, 0], 0
    for token in phrase[1:]:
        while n and phrase[n] != token:
            n = table[n]
        n += phrase[n] == token
        table.append(n)
    return tuple(table)


@dataclass
class PartialHypothesis:
    """The tokens so far, log p of them, and how far each phrase is; `parent` is its column in the beam before."""

    tokens: list[int]
    logprob: float
    progress: Progress
    parent: int = 0


class ConstrainedBeam:
    """The hypotheses of one sentence. Those with equally many tokens of the phrases are a bank, and each bank has its
    share of the beam, so that what has begun a phrase is not pushed out by likelier text without it.

    A hypothesis ends when it has all phrases. As in `Beam`, one that ends takes its place in the beam with it.
    """

    def __init__(self, matcher: PhraseMatcher, beams: int, limit: int, prefix: Sequence[int]) -> None:
        self.matcher, self.free, self.prefix = matcher, beams, list(prefix)
        self.limit = max(limit, len(self.prefix) + matcher.total)
        self.alive = [PartialHypothesis([], 0.0, matcher.start)]
        self.ended: list[Hypothesis] = []

    def tokens(self, at: int, column: int, likeliest: Sequence[int]) -> set[int]:
        """The tokens that may follow a hypothesis."""
        if at < len(self.prefix):
            return {self.prefix[at]}
        progress = self.alive[column].progress
        ends = {END} if self.matcher.complete(progress) else set()
        if at >= self.limit:
            return ends
        return self.matcher.wanted(progress) | ends | {token for token in likeliest if token != END}

    def advance(
        self, at: int, logprobs: Float[Tensor, "beams vocabulary"], likeliest: list[list[int]], ranking: Ranking
    ) -> None:
        """Every hypothesis by every token that may follow; each bank keeps its likeliest."""
        banks: dict[int, list[PartialHypothesis]] = {}
        for column, before in enumerate(self.alive):
            tokens = sorted(self.tokens(at, column, likeliest[column]))
            values = logprobs[column, torch.tensor(tokens, dtype=torch.int64)].tolist()
            for token, value in zip(tokens, values, strict=True):
                progress = before.progress if token == END else self.matcher.advance(before.progress, token)
                room = token == END or at + 1 + self.matcher.missing(progress) <= self.limit
                if value > NEVER and room:
                    after = PartialHypothesis([*before.tokens, token], before.logprob + value, progress, column)
                    banks.setdefault(sum(progress), []).append(after)
        self.alive = []
        for kept in allocate(banks, self.matcher.total + 1, self.free):
            if kept.tokens[-1] == END:
                self.free -= 1
                score = _score(ranking, kept.logprob, at + 1)
                self.ended.append(Hypothesis(kept.tokens[:-1], score, kept.logprob))
            else:
                self.alive.append(kept)

    def done(self, best: int, ranking: Ranking) -> bool:
        """Nothing is alive, or nothing alive can still become one of the best."""
        if not self.alive or not self.free:
            return True
        leaders = sorted((hypothesis.score for hypothesis in self.ended), reverse=True)[:best]
        highest_score = _score(ranking, max(each.logprob for each in self.alive), self.limit + 1)
        return len(leaders) == best and leaders[-1] >= highest_score


def allocate(banks: dict[int, list[PartialHypothesis]], levels: int, free: int) -> list[PartialHypothesis]:
    """The hypotheses that stay: an equal share for each of `levels` banks, the rest of the division to those with most
    tokens; what a bank cannot use goes to the likeliest of the others."""
    ranked = {level: sorted(bank, key=lambda each: -each.logprob) for level, bank in banks.items()}
    share, rest = divmod(free, levels)
    kept: list[PartialHypothesis] = []
    left: list[PartialHypothesis] = []
    for level in sorted(ranked, reverse=True):
        size = share + (levels - 1 - level < rest)
        kept += ranked[level][:size]
        left += ranked[level][size:]
    left.sort(key=lambda each: -each.logprob)
    kept += left[: free - len(kept)]
    return sorted(kept, key=lambda each: -each.logprob)


@torch.no_grad()
def constrained_search(
    decoder: Decoder[Any],
    annotations: Annotations,
    phrases: Sequence[Sequence[Sequence[int]]],
    prefixes: Sequence[Sequence[int]],
    limits: Sequence[int],
    ranking: Ranking,
    *,
    beams: int,
    best: int,
) -> list[list[Hypothesis]]:
    """For every sentence the `best` translations that begin with its prefix and contain its phrases, best first.

    A limit on the tokens of a sentence is raised where prefix and phrases need more. There is always a translation: a
    hypothesis whose phrases would not fit any more is dropped in time.
    """
    sentences = [
        ConstrainedBeam(PhraseMatcher.of(several), beams, limit, prefix)
        for several, limit, prefix in zip(phrases, limits, prefixes, strict=True)
    ]
    steps = max(sentence.limit for sentence in sentences) + 1
    if decoder.most_steps is not None and steps > decoder.most_steps:
        raise ValueError(f"prefix and phrases need {steps} steps, and this decoder has {decoder.most_steps} positions")
    state, device = decoder.start(annotations, beams=beams, steps=steps), annotations.vectors.device
    tokens = torch.full((len(sentences), beams), BEGIN)
    for at in range(steps):
        features, state, _ = decoder.step(tokens.flatten().to(device), state)
        logprobs = decoder.readout(features).float().log_softmax(-1)
        logprobs[..., :END] = NEVER  # <pad> and <s> are no words
        likeliest = topk(logprobs, min(beams, logprobs.shape[-1]))[1].tolist()
        logprobs = logprobs.cpu()
        rows = torch.arange(len(sentences) * beams)
        for number, sentence in enumerate(sentences):
            first = number * beams
            if sentence.done(best, ranking):
                continue
            sentence.advance(at, logprobs[first : first + beams], likeliest[first : first + beams], ranking)
            for column, hypothesis in enumerate(sentence.alive):
                rows[first + column] = first + hypothesis.parent
                tokens[number, column] = hypothesis.tokens[-1]
        if all(sentence.done(best, ranking) for sentence in sentences):
            break
        state = state.reorder(rows.to(device))
    if not all(sentence.ended for sentence in sentences):
        raise ValueError("no hypothesis has a finite score: the model's logits are NaN or infinite")
    return [sorted(sentence.ended, key=lambda each: -each.score)[:best] for sentence in sentences]


def _score(ranking: Ranking, logprob: float, length: int) -> float:
    return float(ranking(torch.tensor([[logprob]]), torch.tensor(length)))
