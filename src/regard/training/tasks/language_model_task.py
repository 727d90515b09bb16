"""Language modelling: the loss on held-out text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...data.text_windows import AdjacentWindows, RandomWindows
from ...noun_count import count_of
from .task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import EncodedCorpus, Pair, TokenizerPair
    from ...models.config_base import TaskName


class LanguageModelTask(Task):
    """The text is one stream of tokens; a batch is windows of it, `data.longest` tokens each."""

    name: ClassVar[TaskName] = "write"
    measure: ClassVar[str] = "loss"
    command: ClassVar[str] = 'regard generate --model FOLDER "How it begins"'
    tag: ClassVar[str] = "text-generation"

    def batches(
        self,
        encoded: EncodedCorpus,
        *,
        seed: int,
        epoch: int,
        rank: int,
        world: int,
        fixed_shapes: bool | Literal["full"],
    ) -> RandomWindows:
        # All of one shape, with or without `fixed_shapes`.
        return RandomWindows(encoded, **self._sizes, seed=seed, epoch=epoch, rank=rank, world=world)

    def checks(self, encoded: EncodedCorpus, *, rank: int = 0, world: int = 1) -> AdjacentWindows:
        return AdjacentWindows(encoded, **self._sizes, rank=rank, world=world)

    @property
    def _sizes(self) -> dict[str, int]:
        block = self.recipe.data.longest
        return {"block": block, "rows": self.recipe.training.tokens // block}

    def amount(self, encoded: EncodedCorpus) -> str:
        return count_of(len(encoded.target), "token")

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        return [""] * len(pairs)  # only the loss is measured

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return -nll
