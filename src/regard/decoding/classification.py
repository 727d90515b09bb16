"""Classification: labels of texts or sounds, with their probabilities and the weight of each position."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..special_tokens import UNKNOWN
from .translation import batches, stacked, windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jaxtyping import Float, Shaped
    from torch import Tensor

    from ..data.tokenizer_pair import TokenizerPair
    from ..models.classifier import Classifier

ON_CPU, ON_GPU = 4096, 65536  # tokens of a batch; of sound, hundredths of a second


@dataclass
class Classification:
    """A source and its label. `probabilities` are by label, likeliest first; empty where the source was refused.

    `weights` has one number per place (a token, </s> included, or a stretch of sound), where requested and
    where the model's pooling has weights; `static` the TF-IDF weights of the same tokens.
    """

    source: str
    numbers: Shaped[np.ndarray, "length"] = field(default_factory=lambda: np.zeros(0, np.int64))  # ids, or samples
    probabilities: dict[str, float] = field(default_factory=dict)
    weights: Float[Tensor, "places"] | None = None
    static: Float[Tensor, "places"] | None = None

    @property
    def label(self) -> str:
        return next(iter(self.probabilities), "")


def classify(
    model: Classifier,
    tokenizers: TokenizerPair,
    sources: Iterable[str],
    *,
    tokens: int | None = None,
    window: int = 4096,
    weights: bool = False,
    refused: Callable[[int, str], None] | None = None,
) -> Iterator[Classification]:
    """Classifies each source, in order, reading at most `window` of them ahead.

    Sources of like length share a batch of at most `tokens`, padding counted. One that cannot be read, is empty or too
    long is an error; with `refused` that function is called with its number (from 1) and the reason, and it gets no
    label.
    """
    tokens = batch_tokens(model) if tokens is None else tokens
    if tokens < 1 or window < 1:
        raise ValueError(f"classify needs tokens ≥ 1 and window ≥ 1, got {tokens} and {window}")
    empty = "is empty: there is nothing to name"
    for names, arrays in windows(tokenizers.source, sources, window, refused, noun="text", empty=empty):
        results = [Classification(name) for name in names]
        for batch in batches(arrays, tokens, tokenizers.source):
            for i in batch:
                results[i].numbers = np.asarray(arrays[i])
            _run(model, tokenizers.target.names, [results[i] for i in batch], weights)
        yield from results


def batch_tokens(model: Classifier) -> int:
    """The tokens of a batch, padding counted, that suit the caches of a CPU or fill a GPU."""
    return ON_GPU if next(model.parameters()).is_cuda else ON_CPU


@torch.no_grad()
def _run(model: Classifier, labels: list[str], batch: list[Classification], weights: bool) -> None:
    """Sets the probabilities and weights of these results."""
    device = next(model.parameters()).device
    source, lengths = (part.to(device) for part in stacked([result.numbers for result in batch]))
    training = model.training
    model.eval()
    try:
        output = model(source, lengths, weights=weights)
        own = output.weights if model.pooling is model.static else None  # they need not be computed twice
        static = model.rarity(source, lengths) if weights and own is None else own
    finally:
        model.train(training)
    probabilities, places = torch.softmax(output.logits.double(), -1).cpu(), output.places.tolist()
    for i, result in enumerate(batch):
        order = probabilities[i].argsort(descending=True, stable=True).tolist()
        result.probabilities = {labels[n]: float(probabilities[i, n]) for n in order}
        if output.weights is not None:
            result.weights = output.weights[i, : places[i]].float().cpu()
        if static is not None:
            result.static = static[i, : len(result.numbers)].float().cpu()


@dataclass(frozen=True)
class TextWords:
    """The words of a text; `word_of_token` has the word of each token, `unknown` the indices of unknown words."""

    words: list[str]
    word_of_token: list[int]
    unknown: list[int]
    tokenizer: Any

    @classmethod
    def of(cls, result: Classification, tokenizer: Any) -> TextWords:
        ids = result.numbers[:-1].tolist()
        word_of_token = tokenizer.words(ids)
        words = result.source.split()
        if len(words) != max(word_of_token) + 1:  # the tokenizer does not split words at spaces
            words = [""] * (max(word_of_token) + 1)
            for word, piece in zip(word_of_token, tokenizer.pieces(ids), strict=True):
                words[word] += piece.replace("▁", "")
        ids_of_word: list[list[int]] = [[] for _ in words]
        for i, word in zip(ids, word_of_token, strict=True):
            ids_of_word[word].append(i)
        unknown = [
            n
            for n, word_ids in enumerate(ids_of_word)
            # A word of which only the punctuation is unknown is known.
            if UNKNOWN in word_ids
            and (set(word_ids) == {UNKNOWN} or UNKNOWN in tokenizer.encode(_strip_punctuation(words[n])))
        ]
        return cls(words, word_of_token, unknown, tokenizer)

    @property
    def all_unknown(self) -> bool:
        return len(self.unknown) == len(self.words)

    def marked(self) -> list[str]:
        """The words, unknown ones in ⟨⟩."""
        return [f"⟨{word}⟩" if n in self.unknown else word for n, word in enumerate(self.words)]

    def warning(self) -> str:
        """A warning about the unknown words; "" if there are none."""
        if not self.unknown:
            return ""
        if self.all_unknown:
            return "the model knows no word of this, so its answer says nothing about it"
        message = "the model does not know what stands in ⟨⟩, or a part of it"
        for n in self.unknown:
            bare = _strip_punctuation(self.words[n])
            if bare not in ("", self.words[n]) and UNKNOWN not in self.tokenizer.encode(bare):
                return f"{message}; it knows {bare!r}, so put a space between it and the punctuation"
        return message


def _strip_punctuation(word: str) -> str:
    return re.sub(r"^\W+|\W+$", "", word)
