"""Spelling spoken words: the character error rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..score.error_rate import error_rate
from .translate_task import TranslateTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import Pair
    from ...models.config_base import TaskName


class SpellTask(TranslateTask):
    name: ClassVar[TaskName] = "spell"
    measure: ClassVar[str] = "error rate"
    command: ClassVar[str] = "regard classify --model FOLDER sound.wav"
    tag: ClassVar[str] = "automatic-speech-recognition"

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return -100 * error_rate(answers, [pair.target for pair in pairs])

    def shown(self, score: float) -> str:
        return f"{self.measure} {-score:.2f} %"
