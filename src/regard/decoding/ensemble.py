"""Ensembles: several models that write together, with the mean of their probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from ..data.batches import Batches
from ..data.encoding import EncodedCorpus
from ..data.rows import Pair
from ..models.decoder import Decoder, DecoderOutput, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..data.tokenizer_pair import TokenizerPair
    from ..models.configurations import Annotations
    from ..models.encoder_decoder import EncoderDecoder


@dataclass
class EnsembleState(State):
    """The state of each decoder."""

    states: list[Any]

    def reorder(self, rows: Int[Tensor, "rows"]) -> EnsembleState:
        return replace(self, states=[state.reorder(rows) for state in self.states])

    def keep(self, sentences: Int[Tensor, "kept"]) -> EnsembleState:
        return replace(self, states=[state.keep(sentences) for state in self.states])


class EnsembleDecoder(Decoder[EnsembleState]):
    """p(y_t | y_<t, x) = 1/M Σ_m p_m(y_t | y_<t, x), over M decoders with one target vocabulary.

    The features are log p itself, so `readout` is the identity. There is one map of weights for each decoder that
    attends: the mean of its own maps.
    """

    def __init__(self, decoders: Sequence[Decoder[Any]]) -> None:
        super().__init__()
        self.decoders = tuple(decoders)  # registered by the models
        self.most_steps = min((each.most_steps for each in decoders if each.most_steps is not None), default=None)

    @property
    def vocabulary_size(self) -> int:
        return self.decoders[0].vocabulary_size

    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        decoded = [
            decoder(tokens, part, weights=weights)
            for decoder, part in zip(self.decoders, _parts(annotations), strict=True)
        ]
        log_p = self._mean([each.features for each in decoded])
        return DecoderOutput(log_p, _maps([each.weights for each in decoded]))

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> EnsembleState:
        pairs = zip(self.decoders, _parts(annotations), strict=True)
        return EnsembleState([decoder.start(part, beams=beams, steps=steps) for decoder, part in pairs])

    def step(
        self, tokens: Int[Tensor, "rows"], state: EnsembleState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows vocabulary"], EnsembleState, Float[Tensor, "rows maps places"] | None]:
        pairs = zip(self.decoders, state.states, strict=True)
        steps = [decoder.step(tokens, each, weights=weights) for decoder, each in pairs]
        log_p = self._mean([features for features, _, _ in steps])
        return log_p, EnsembleState([each for _, each, _ in steps]), _maps([maps for _, _, maps in steps])

    def readout(self, features: Float[Tensor, "*batch vocabulary"]) -> Float[Tensor, "*batch vocabulary"]:
        return features

    def _mean(self, features: list[Tensor]) -> Float[Tensor, "*batch vocabulary"]:
        """log 1/M Σ_m p_m."""
        pairs = zip(self.decoders, features, strict=True)
        log_p = torch.stack([decoder.readout(each).float().log_softmax(-1) for decoder, each in pairs])
        return log_p.logsumexp(0) - math.log(len(self.decoders))


class Ensemble(nn.Module):
    """Several models with the same vocabularies as one, in evaluation mode; `search` and `translate` take it."""

    def __init__(self, models: Sequence[EncoderDecoder]) -> None:
        super().__init__()
        sizes = [(model.config.source_vocabulary, model.config.target_vocabulary) for model in models]
        if not sizes:
            raise ValueError("an ensemble needs at least one model")
        if len(set(sizes)) > 1:
            raise ValueError(f"the models of an ensemble need the same vocabularies; theirs have {sizes} tokens")
        self.models = nn.ModuleList(models)
        self.decoder = EnsembleDecoder([model.decoder for model in models])
        self.eval()

    def encode(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        """The annotations of the first model, with those of all as their parts."""
        parts = tuple(cast("EncoderDecoder", model).encode(source, lengths) for model in self.models)
        return replace(parts[0], parts=parts)


def check_same_tokenizers(names: Sequence[str], pairs: Sequence[TokenizerPair]) -> None:
    """Raise an error where a model of an ensemble has other tokenizers than the first."""
    first = _vocabularies(pairs[0])
    for name, pair in zip(names[1:], pairs[1:], strict=True):
        if _vocabularies(pair) != first:
            raise ValueError(
                f"{name} has other vocabularies than {names[0]}; models of an ensemble need the same: train them with "
                "the same data, or with tokenizer.load"
            )


def _vocabularies(pair: TokenizerPair) -> list[str]:
    return [pair.source.to_json(), pair.target.to_json()]


def _parts(annotations: Annotations) -> tuple[Annotations, ...]:
    if not annotations.parts:
        raise TypeError("an ensemble decodes the annotations of all its models; make them with its `encode`")
    return annotations.parts


def _maps(weights: list[Tensor | None]) -> Tensor | None:
    """One map for each decoder that attends, [rows, maps, …]."""
    own = [each.float().mean(1) for each in weights if each is not None]
    return torch.stack(own, 1) if own else None


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
