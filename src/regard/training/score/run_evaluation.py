"""Evaluating a loaded model of any task, on a split of its run's recipe or on a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .translation_evaluation import evaluate_translation

if TYPE_CHECKING:
    from pathlib import Path

    from ...data import Pair
    from ...decoding.pretrained import Pretrained
    from ...decoding.search import Settings
    from .task_evaluation import TaskEvaluation
    from .translation_evaluation import TranslationEvaluation


def pairs_of_file(file: Path, task: str, columns: str) -> list[Pair]:
    """The pairs of a file; for a language model, its text."""
    if task == "write":
        from ..trainer.recipe_corpus import running

        return list(running(file))
    from ...data import PairReader

    names = tuple(int(name) if name.strip().isdecimal() else name.strip() for name in columns.split(","))
    if pairs := list(PairReader(file, columns=names)):
        return pairs
    raise ValueError(f"{file} holds no rows, so there is nothing to evaluate on")


def pairs_of_run(loaded: Pretrained, split: Literal["test", "valid"]) -> tuple[list[Pair], bool]:
    """The pairs of a split of the run's recipe, and whether their text is tokenised."""
    if loaded.run is None:
        raise ValueError(f"{loaded.folder} is a model without a recipe: say which FILE of pairs to evaluate on")
    from ..run.run_folder import Run
    from ..trainer.recipe_corpus import read

    recipe = Run.open(loaded.run).recipe
    if pairs := list(read(recipe.data, split, recipe.source.kind)):
        return pairs, recipe.data.tokenised
    raise ValueError(f"there is nothing to evaluate on: the recipe's data.{split} is empty; give a FILE of pairs")


def evaluate_loaded(
    loaded: Pretrained, pairs: list[Pair], settings: Settings, *, tokens: int | None, tokenised: bool
) -> tuple[TranslationEvaluation | TaskEvaluation, list[str]]:
    """The scores of a model on these pairs, and its output for each source."""
    if loaded.model.task == "translate":
        return evaluate_translation(
            loaded.model, loaded.tokenizers, pairs, tokens=tokens, tokenised=tokenised, **settings
        )
    from ..run.run_folder import Run
    from ..tasks import recipe_task
    from .task_evaluation import evaluate_task

    assert loaded.run is not None
    recipe = Run.open(loaded.run).recipe
    recipe = recipe.model_copy(update={"search": recipe.search.model_copy(update=dict(settings))})
    return evaluate_task(recipe_task(recipe), loaded.model, loaded.tokenizers, pairs)
