"""A model that computes a batch of texts as the API answers it: translations or labels, with weights on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..decoding import classification, load_model_and_tokenizers, translate, translation
from ..decoding.beam import limits
from ..decoding.classification import classify
from ..decoding.source_batches import read
from ..seeing.alignment.word_level_weights import translation_word_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..decoding import Translation
    from ..decoding.classification import Classification
    from ..decoding.load_model_and_tokenizers import PrecisionName

TASKS = ("translate", "classify")
DIGITS = 5
"""Decimals of weights and probabilities in an answer."""


class RefusedTextError(ValueError):
    """A text that the model cannot read: too long, or empty."""


@dataclass(frozen=True)
class ServeSettings:
    """What texts of one batch have in common. `best` and `beams` are of translations.

    `beams` 0 is the model's own, or `best` where that is more.
    """

    beams: int = 0
    best: int = 1
    weights: bool = False


class ServedModel:
    """A translator or a text classifier: a run, a model's folder, or one that ships."""

    def __init__(
        self, name: str, device: str = "cpu", engine: str = "torch", precision: PrecisionName = "float32"
    ) -> None:
        self.name = name
        self.loaded = load_model_and_tokenizers.load(name, device, engine, wanted=TASKS, precision=precision)
        self.task: str = self.loaded.model.task
        if self.loaded.tokenizers.source.kind != "text":
            raise ValueError(f"{name} reads {self.loaded.tokenizers.source.kind}; `regard serve` serves models of text")
        self.attends = engine == "torch"  # other engines keep no weights

    def __call__(self, texts: list[str], settings: ServeSettings) -> list[dict[str, Any] | Exception]:
        """An answer for each text, or a RefusedTextError. Weights are tensors, which take less memory than lists."""
        refusals: dict[int, RefusedTextError] = {}

        def refused(number: int, reason: str) -> None:
            refusals[number - 1] = RefusedTextError(reason)

        compute = {"translate": self._translations, "classify": self._labels}[self.task]
        answers = compute(texts, settings, refused)
        return [refusals.get(n, answer) for n, answer in enumerate(answers)]

    @property
    def batch_tokens(self) -> int:
        """Source tokens of a batch, padding counted, that are computed at once."""
        of_task = {"translate": translation.batch_tokens, "classify": classification.batch_tokens}[self.task]
        return of_task(self.loaded.model)

    def lengths(self, texts: list[str]) -> list[int]:
        """The source tokens of each text; 0 for one that cannot be read, which is refused when it is computed."""
        sources, _ = read(self.loaded.tokenizers.source, texts)
        return [0 if source is None else len(source) for source in sources]

    def possible_weights(self, source_lengths: list[int]) -> int:
        """How many weights the alignments of texts have if every output is as long as the search allows."""
        lengths = torch.tensor(source_lengths)
        if self.task == "classify":
            return int(lengths.sum())
        longest = limits(lengths, self.loaded.search.get("longest"))
        return int((lengths * longest).sum())

    def _translations(
        self, texts: list[str], settings: ServeSettings, refused: Callable[[int, str], None]
    ) -> Iterator[dict[str, Any]]:
        how: Any = dict(self.loaded.search)
        how["beams"] = settings.beams or max(how.get("beams", 5), settings.best)
        how["best"], how["weights"] = settings.best, settings.weights and "first"  # an answer has the best's alignment
        for each in translate(self.loaded.model, self.loaded.tokenizers, texts, refused=refused, **how):
            yield _translation_answer(each, settings)

    def _labels(
        self, texts: list[str], settings: ServeSettings, refused: Callable[[int, str], None]
    ) -> Iterator[dict[str, Any]]:
        model, tokenizers = self.loaded.model, self.loaded.tokenizers
        for result in classify(model, tokenizers, texts, weights=settings.weights, refused=refused):
            yield _label_answer(result, tokenizers, settings)


def _translation_answer(translation: Translation, settings: ServeSettings) -> dict[str, Any]:
    several = zip(translation.texts, translation.hypotheses, strict=True)
    hypotheses = [{"text": text, "score": round(hypothesis.score, DIGITS)} for text, hypothesis in several]
    answer: dict[str, Any] = {**hypotheses[0], "source": translation.source}
    if settings.best > 1:
        answer["hypotheses"] = hypotheses
    if settings.weights:
        answer["alignment"] = None
        if translation.weights is not None and len(translation.source_tokens) > 1:
            weights, target, source = translation_word_weights(translation)
            answer["alignment"] = {"source": source, "target": target, "weights": weights}
    return answer


def _label_answer(result: Classification, tokenizers: Any, settings: ServeSettings) -> dict[str, Any]:
    probabilities = {label: round(share, DIGITS) for label, share in result.probabilities.items()}
    answer: dict[str, Any] = {"label": result.label, "probabilities": probabilities, "source": result.source}
    if settings.weights:
        answer["alignment"] = None
        if result.weights is not None:
            pieces = tokenizers.source.pieces([int(number) for number in result.numbers])
            answer["alignment"] = {"source": pieces, "weights": result.weights}
    return answer


def alignment_size(answer: dict[str, Any]) -> int:
    """How many weights an answer has."""
    alignment = answer.get("alignment")
    return 0 if alignment is None else int(alignment["weights"].numel())


def listed_alignment(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer whose weights are lists of rounded numbers, as JSON has them."""
    alignment = answer.get("alignment")
    if alignment is None:
        return answer
    rounded = alignment["weights"].double().mul(10**DIGITS).round().div(10**DIGITS).tolist()
    return {**answer, "alignment": {**alignment, "weights": rounded}}
