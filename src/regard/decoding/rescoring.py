"""Scores of given translations by a model, and lists of hypotheses in the order of another model's scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..data import Batches, EncodedCorpus, Pair
from .beam import Ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..data import TokenizerPair
    from ..models import EncoderDecoder
    from .translation import Translation


@dataclass(frozen=True)
class TargetLogprob:
    """log p(y | x) of a given translation, and its number of tokens; </s> is in both."""

    logprob: float
    tokens: int


@torch.no_grad()
def target_logprobs(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Sequence[tuple[str, str]], *, tokens: int = 4096
) -> list[TargetLogprob]:
    """log p(target | source) of each pair (source, target), by teacher forcing: minus the model's loss."""
    corpus = [Pair(source, target, row) for row, (source, target) in enumerate(pairs)]
    encoded = EncodedCorpus.build(corpus, tokenizers)
    device, training = next(model.parameters()).device, model.training
    results: list[Any] = [None] * len(corpus)
    model.eval()
    try:
        for batch in Batches(encoded, tokens=max(tokens, int(encoded.widths.max(initial=1)))):
            batch = batch.to(device)
            inputs, wanted = batch.target[:, :-1], batch.target[:, 1:]
            decoded = model(batch.source, batch.source_lengths, inputs)
            real = torch.arange(wanted.shape[1], device=device) < (batch.target_lengths - 1)[:, None]
            sums = (model.decoder.target_logprobs(decoded, wanted).double() * real).sum(1)
            for row, logprob, count in zip(batch.rows.tolist(), sums.tolist(), real.sum(1).tolist(), strict=True):
                results[row] = TargetLogprob(logprob, count)
    finally:
        model.train(training)
    return results


def rescore(
    translations: Sequence[Translation],
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    *,
    share: float = 0.5,
    length_penalty: float = 1.0,
) -> list[Translation]:
    """The translations with their hypotheses in the order of (1 − share) · s + share · s', best first.

    s is the score of the search, and s' = log p'(y | x) / lp(y) that of another model, which reads and splits the texts
    with its own tokenizers. The order of equal scores stays.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is that of the other model's score, 0 to 1; got {share}")
    ranking = Ranking(length_penalty)
    pairs = [(each.source, text) for each in translations for text in each.texts]
    others = iter(target_logprobs(model, tokenizers, pairs))
    rescored = []
    for each in translations:
        scored = []
        for text, hypothesis in zip(each.texts, each.hypotheses, strict=True):
            other = next(others)
            score = float(ranking(torch.tensor([[other.logprob]]), torch.tensor(other.tokens)))
            scored.append((text, replace(hypothesis, score=(1 - share) * hypothesis.score + share * score)))
        scored.sort(key=lambda pair: -pair[1].score)
        rescored.append(replace(each, texts=[text for text, _ in scored], hypotheses=[best for _, best in scored]))
    return rescored
