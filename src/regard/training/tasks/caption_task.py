"""Captioning: BLEU-4 over all the captions that people gave a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..score.caption_metrics import bleu, chrf, cider
from .translate_task import TranslateTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import Pair, TokenizerPair
    from ...models.config_base import TaskName


class CaptionTask(TranslateTask):
    """Pairs may share a picture: it is described once, and all their captions are its references."""

    name: ClassVar[TaskName] = "caption"
    measure: ClassVar[str] = "BLEU"
    command: ClassVar[str] = "regard caption --model FOLDER picture.png"
    tag: ClassVar[str] = "image-to-text"

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        once = list({pair.source: pair for pair in pairs}.values())
        captions = dict(zip((pair.source for pair in once), super().answers(model, tokenizers, once), strict=True))
        return [captions[pair.source] for pair in pairs]

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return bleu(*gathered(answers, pairs))[3]

    def figures(
        self, answers: list[str], pairs: Sequence[Pair], nll: float, model: Any, tokenizers: TokenizerPair
    ) -> dict[str, float]:
        captions, references = gathered(answers, pairs)
        figures = {f"BLEU-{n}": value for n, value in enumerate(bleu(captions, references), 1)}
        figures |= {"CIDEr-D": cider(captions, references), "chrF": chrf(captions, references)}
        if self.recipe.data.kind == "scenes":
            from ..score.caption_pointing import pointing  # evaluation imports tasks

            share = pointing(model, tokenizers, pairs)
            figures |= {} if share is None else {"pointing": share}
        return {**figures, "loss": nll}


def gathered(answers: Sequence[str], pairs: Sequence[Pair]) -> tuple[list[str], list[list[str]]]:
    """One caption per picture, and its references."""
    by_picture: dict[str, tuple[str, list[str]]] = {}
    for answer, pair in zip(answers, pairs, strict=True):
        by_picture.setdefault(pair.source, (answer, []))[1].append(pair.target)
    return [answer for answer, _ in by_picture.values()], [references for _, references in by_picture.values()]
