"""Evaluates a translator: BLEU, chrF, perplexity, alignment error rate and speed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ...data import Batches, EncodedCorpus
from ...decoding import translate
from ...models import EncoderDecoder
from ...seeing.alignment.word_alignment import alignment_error_rate, best_links
from ...seeing.alignment.word_level_weights import merge_pieces
from . import bleu as scores
from .copy_recall import copy_recall
from .gold_links import gold_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Unpack

    from torch import Tensor

    from ...data import Batch, Pair, TokenizerPair
    from ...decoding.beam import SearchSettings
    from ...decoding.translation import Engine
    from ...seeing.alignment.word_alignment import Links
    from .bleu import LengthBin, Score


@dataclass
class TranslationEvaluation:
    """What `regard evaluate` prints and a run's results.json keeps."""

    sentences: int
    bleu: Score
    tokenised_bleu: Score  # of the words that spaces separate; what papers on tokenised text report
    chrf: Score
    perplexity: float | None  # per token of the model's own vocabulary, </s> counted; None of an engine not ours
    aer: dict[str, float]  # by layer of attention; empty without gold links or without attention
    by_length: list[LengthBin]
    tokens_per_second: float  # of translations, </s> counted
    seconds: float  # for translating all sentences
    search: dict[str, Any]
    copied: float | None = None  # share of the unknown words to copy that were copied; None where there are none

    @property
    def best_aer(self) -> float | None:
        return min(self.aer.values(), default=None)


def evaluate_translation(
    model: EncoderDecoder | Engine,
    tokenizers: TokenizerPair,
    pairs: Iterable[Pair],
    *,
    tokens: int | None = None,
    tokenised: bool = False,
    **how: Unpack[SearchSettings],
) -> tuple[TranslationEvaluation, list[str]]:
    """The scores of a model on these pairs, and its translations.

    `tokenised` says that the text of the pairs is tokenised, for BLEU by length. Another engine than our models has
    neither perplexity nor AER. `how` are the keywords of `search`.
    """
    pairs = list(pairs)
    if not pairs:
        raise ValueError("there are no pairs to evaluate on")
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    own = model if isinstance(model, EncoderDecoder) else None
    linked = [pair for pair in pairs if pair.alignment is not None]
    if own and own.config.decoder.attends:
        for pair in linked:  # before the translation, which takes long
            gold_links(pair, tokenizers)
    began = time.perf_counter()
    translations = list(translate(model, tokenizers, sources, tokens=tokens, window=len(pairs), **how))
    seconds = time.perf_counter() - began
    written = sum(len(translation.hypotheses[0].tokens) + 1 for translation in translations)
    texts = [translation.text for translation in translations]
    evaluation = TranslationEvaluation(
        sentences=len(pairs),
        bleu=scores.bleu(texts, references),
        tokenised_bleu=scores.bleu(texts, references, tokenised=True),
        chrf=scores.chrf(texts, references),
        perplexity=perplexity(own, tokenizers, pairs) if own else None,
        aer=alignment_errors(own, tokenizers, linked) if own else {},
        by_length=scores.by_length(sources, texts, references, tokenised=tokenised),
        tokens_per_second=written / seconds,
        seconds=seconds,
        search={name: value for name, value in how.items() if value is not None},
        copied=copy_recall(texts, pairs, tokenizers),
    )
    return evaluation, texts


@torch.no_grad()
def perplexity(model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Iterable[Pair], *, tokens: int = 4096) -> float:
    """exp(−Σ log p(y_t | y_<t, x) / T), over every token of every target, </s> counted."""
    loss = count = 0.0
    for batch in forced_batches(model, tokenizers, pairs, tokens):
        batch_loss = model.loss(batch)
        loss, count = loss + float(batch_loss.nll), count + float(batch_loss.tokens)
    try:
        return math.exp(loss / count)
    except OverflowError:  # past 709 nats a token
        return math.inf


def alignment_errors(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: list[Pair], *, tokens: int = 4096
) -> dict[str, float]:
    """The AER of each attention layer, where a target word is linked to the source word with its largest weight.

    The reference is the input (forced decoding); heads are averaged. Empty without attention or without pairs.
    """
    links_by_layer: dict[str, list[Links]] = {}
    for weights in alignments(model, tokenizers, pairs, tokens=tokens):
        for number, layer in enumerate(weights, 1):
            name = f"layer {number}" if len(weights) > 1 else "attention"
            links_by_layer.setdefault(name, []).append(best_links(layer))
    if not links_by_layer:
        return {}
    gold = [gold_links(pair, tokenizers) for pair in pairs]
    sure, possible = [links or set() for links, _ in gold], [links for _, links in gold]
    return {name: alignment_error_rate(links, sure, possible) for name, links in links_by_layer.items()}


@torch.no_grad()
def alignments(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: list[Pair], *, tokens: int = 4096
) -> list[Tensor]:
    """Attention weights with forced decoding of each reference: [layers, target words, source words] per pair."""
    weights_by_row: list[Tensor | None] = [None] * len(pairs)
    for batch in forced_batches(model, tokenizers, pairs, tokens):
        weights = model(batch.source, batch.source_lengths, batch.target[:, :-1], weights=True).weights
        if weights is None:
            return []
        layers = getattr(model.config.decoder, "layers", 1) if weights.shape[1] > 1 else 1
        weights = weights.unflatten(1, (layers, -1)).mean(2).float().cpu()  # [batch, layers, target, places]
        for i, row in enumerate(batch.rows.tolist()):
            target = tokenizers.target.words(batch.target[i, 1 : batch.target_lengths[i] - 1].tolist())
            source = tokenizers.source.words(batch.source[i, : batch.source_lengths[i] - 1].tolist())
            weights_by_row[row] = merge_pieces(weights[i], target, source)
    return [weights for weights in weights_by_row if weights is not None]


def forced_batches(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Iterable[Pair], tokens: int = 4096
) -> Iterator[Batch]:
    """Batches of similar length on the model's device, `rows` numbered from 0; the model is in evaluation mode."""
    encoded = EncodedCorpus.build([replace(pair, row=row) for row, pair in enumerate(pairs)], tokenizers)
    widest = int(encoded.widths.max(initial=1))
    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        for batch in Batches(encoded, tokens=max(tokens, widest)):
            yield batch.to(device)
    finally:
        model.train(training)
