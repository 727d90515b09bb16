"""Classifying: the share of labels that are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ...models.classifier import Classifier
from ...noun_count import count_of
from .task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import EncodedCorpus, Pair, TokenizerPair
    from ...models.config_base import TaskName


class ClassifyTask(Task):
    name: ClassVar[TaskName] = "classify"
    measure: ClassVar[str] = "accuracy"
    command: ClassVar[str] = 'regard classify --model FOLDER "A sentence, or a file of sound"'

    @property
    def tag(self) -> str:
        return {"text": "text-classification", "sound": "audio-classification"}[self.recipe.source.kind]

    def model(self, tokenizers: TokenizerPair, train: EncodedCorpus) -> Classifier:
        words = tokenizers.source_size
        model = Classifier(self.recipe.classifier(words, len(tokenizers.target.names)))
        if model.static is not None:
            model.static.idf.copy_(torch.from_numpy(train.idf(words, model.config.head.idf)))
        return model

    def amount(self, encoded: EncodedCorpus) -> str:
        return count_of(len(encoded), "example")

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        from ...decoding.classification import classify

        return [found.label for found in classify(model, tokenizers, [pair.source for pair in pairs])]

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        right = sum(answer == pair.target for answer, pair in zip(answers, pairs, strict=True))
        return 100 * right / max(len(pairs), 1)
