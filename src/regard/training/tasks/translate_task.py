"""Translating: beam BLEU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ...decoding import translate
from ..score import bleu
from .task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import Pair, TokenizerPair
    from ...models.config_base import TaskName


class TranslateTask(Task):
    name: ClassVar[TaskName] = "translate"
    measure: ClassVar[str] = "BLEU"
    command: ClassVar[str] = 'regard translate --model FOLDER "A sentence."'
    tag: ClassVar[str] = "translation"
    searches: ClassVar[bool] = True

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        how = self.recipe.search.model_dump()
        sources = [pair.source for pair in pairs]
        return [found.text for found in translate(model, tokenizers, sources, **how)]

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        references = [pair.target for pair in pairs]
        return bleu.bleu(answers, references, tokenised=self.recipe.data.tokenised).value
