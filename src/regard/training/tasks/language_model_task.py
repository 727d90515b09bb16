"""Writing, as a language model does: the loss on text it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ...data.text_windows import Blocks, Windows
from .task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import Encoded, Pair, Tokenizers


class Write(Task):
    """The text is one stream of tokens; a batch is windows of it, `data.longest` tokens each."""

    measure: ClassVar[str] = "loss"
    command: ClassVar[str] = 'regard generate --model FOLDER "How it begins"'
    tag: ClassVar[str] = "text-generation"

    def batches(self, encoded: Encoded, *, seed: int, epoch: int, rank: int, world: int, fixed_shapes: bool) -> Windows:
        # All of one shape, asked for or not.
        return Windows(encoded, **self._sizes, seed=seed, epoch=epoch, rank=rank, world=world)

    def checks(self, encoded: Encoded, *, rank: int = 0, world: int = 1) -> Blocks:
        return Blocks(encoded, **self._sizes, rank=rank, world=world)

    @property
    def _sizes(self) -> dict[str, int]:
        block = self.recipe.data.longest
        return {"block": block, "rows": self.recipe.training.tokens // block}

    def amount(self, encoded: Encoded) -> str:
        return f"{len(encoded.target):,} tokens"

    def answers(self, model: Any, tokenizers: Tokenizers, pairs: Sequence[Pair]) -> list[str]:
        return [""] * len(pairs)  # nothing is asked of it but the loss

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return -nll

    def shown(self, score: float) -> str:
        return f"{self.measure} {-score:.4f}"
