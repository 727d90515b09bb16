"""Evaluates a model of any task, on a split of its run's recipe or on a file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from ...data import EncodedCorpus, PairReader
from ...data.label_set import UnknownLabelError
from ...noun_count import count_of
from ..corpora import read, running
from ..run.run_folder import RECIPE, Run
from ..tasks.task import recipe_task
from .label_scores import LabelScore, by_label
from .translation_evaluation import evaluate_translation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ...data import Pair, TokenizerPair
    from ...data.row_readers import Column
    from ...decoding.beam import SearchSettings
    from ...decoding.load_model_and_tokenizers import Pretrained
    from ...models.config_base import TaskName
    from ..tasks.task import Task
    from .translation_evaluation import TranslationEvaluation

ROWS: dict[TaskName, str] = {
    "translate": "pairs",
    "write": "text",
    "classify": "{source}s and labels",
    "caption": "pictures and captions",
    "spell": "sounds and spellings",
}
"""What a file holds that a task is evaluated on."""


@dataclass
class TaskEvaluation:
    """Scores of a model that does not translate, as printed by `regard evaluate` and kept in results.json."""

    task: str
    items: int
    values: dict[str, float]
    amount: str = ""  # the number of items, in the units of the task
    search: dict[str, Any] = field(default_factory=dict)  # empty without a search
    labels: dict[str, LabelScore] = field(default_factory=dict)  # of a classifier: the scores of each label


@torch.no_grad()
def evaluate_task(
    task: Task, model: Any, tokenizers: TokenizerPair, pairs: Iterable[Pair]
) -> tuple[TaskEvaluation, list[str]]:
    """The scores of a model in evaluation mode, and its output for each source."""
    pairs = [replace(pair, row=row) for row, pair in enumerate(pairs)]
    if not pairs:
        raise ValueError("there are no pairs to evaluate on")
    try:
        encoded = EncodedCorpus.build(pairs, tokenizers)
    except UnknownLabelError as error:
        advice = "correct the label, or remove the row"
        if pairs[0].target not in tokenizers.target.names:
            advice += "; if the first line is a header, or texts and labels are in other columns, say so with --columns"
        raise ValueError(f"{error}; {advice}") from None
    if task.name != "write":  # running text is cut into windows
        _require_short(encoded, pairs, tokenizers.source.kind, task.recipe.data.longest)
    nll, count = task.loss_sums(model, encoded).tolist()
    answers = task.answers(model, tokenizers, pairs)
    values = task.figures(answers, pairs, nll / count, model, tokenizers)
    search = task.recipe.search.model_dump() if task.searches else {}
    labels = by_label(answers, pairs, tokenizers.target.names) if task.name == "classify" else {}
    return TaskEvaluation(task.name, len(pairs), values, task.amount(encoded), search, labels), answers


def _require_short(encoded: EncodedCorpus, pairs: list[Pair], kind: str, longest: int) -> None:
    """Raise an error that names the first row beyond data.longest; `kind` is that of the source's reader."""
    too_long = np.flatnonzero(encoded.widths > longest)
    if not len(too_long):
        return
    first = too_long[0]
    width, row = int(encoded.widths[first]), pairs[int(encoded.rows[first])]
    if encoded.target_lengths[first] - 1 == width:
        side = f"the target has {count_of(width, 'token')}"
    elif kind == "sound":
        side = f"the sound has {count_of(width, 'frame')} of 10 ms"
    else:
        side = f"the text has {count_of(width, 'token')}"
    others = f" ({len(too_long):,} rows are too long)" if len(too_long) > 1 else ""
    raise ValueError(
        f"{row.where or f'row {row.row + 1}'}: {side}, and the model was trained on at most {longest:,} "
        f"(data.longest): shorten it, or remove the row{others}"
    )


def parse_columns(columns: str | None) -> tuple[Column, ...]:
    """Columns as the command line has them, numbers or names; the first two if there are none."""
    if columns is None:
        return 0, 1
    return tuple(int(name) if name.strip().isdecimal() else name.strip() for name in columns.split(","))


def pairs_of_file(file: Path, task: str, columns: tuple[Column, ...]) -> list[Pair]:
    """The pairs of a file; for a language model, its text."""
    if task == "write":
        return list(running(file))
    if pairs := list(PairReader(file, columns=columns)):
        return pairs
    raise ValueError(f"{file} holds no rows, so there is nothing to evaluate on")


def default_columns(loaded: Pretrained, file: Path) -> tuple[Column, ...]:
    """Those that the run was trained with, by name or number, where the file has them too; else the first two.

    A file without the run's columns of links still has those of its sources and targets.
    """
    columns = trained_columns(loaded)
    for chosen in dict.fromkeys([columns, columns[:2]]):
        if _has_columns(file, chosen):
            return chosen
    return 0, 1


def trained_columns(loaded: Pretrained) -> tuple[Column, ...]:
    """Those of the run's recipe; the first two where it has none."""
    recipe = None if loaded.run is None else loaded.run / RECIPE
    if recipe is None or not recipe.is_file():
        return 0, 1
    # The file alone, since a recipe whose corpora are gone can be evaluated on others.
    try:
        data = tomllib.loads(recipe.read_text(encoding="utf-8")).get("data")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{recipe} is not a recipe: {error}. Say which columns to read with --columns") from error
    columns = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(columns, list) or not all(isinstance(column, int | str) for column in columns):
        return 0, 1
    return tuple(columns)


def _has_columns(file: Path, columns: tuple[Column, ...]) -> bool:
    """Whether the header of a file has these names, or its first row these numbers."""
    try:
        reader = PairReader(file, columns=columns, on_bad="skip")
        list(reader.check_rows(islice(reader.rows(), 1)))
    except ValueError:
        return False
    # A column that only a number leads to may hold something else than links.
    unfit = ("missing column", "bad links") if isinstance(columns[0], int) else ("missing column",)
    return not any(kind in reader.reasons for kind in unfit)


def pairs_of_run(loaded: Pretrained, split: Literal["test", "valid"]) -> tuple[list[Pair], bool]:
    """The pairs of a split of the run's recipe, and whether their text is tokenised."""
    if loaded.run is None:
        raise ValueError(f"{loaded.folder} is a model without a recipe: say which FILE of pairs to evaluate on")
    recipe = Run.open(loaded.run).recipe
    if pairs := list(read(recipe.data, split, recipe.source.kind)):
        return pairs, recipe.data.tokenised
    other: Literal["test", "valid"] = "valid" if split == "test" else "test"
    advice = f"give a FILE of {ROWS[loaded.model.task].format(source=recipe.source.kind)}"
    try:
        if next(iter(read(recipe.data, other, recipe.source.kind)), None) is not None:
            advice = f"use --split {other}, or {advice}"
    except (OSError, ValueError):  # the other split cannot be read: no advice, and not what was asked
        pass
    raise ValueError(f"there is nothing to evaluate on: the recipe's data.{split} is empty; {advice}")


def evaluate_loaded(
    loaded: Pretrained, pairs: list[Pair], settings: SearchSettings, *, tokens: int | None, tokenised: bool
) -> tuple[TranslationEvaluation | TaskEvaluation, list[str]]:
    """The scores of a model on these pairs, and its output for each source."""
    if loaded.model.task == "translate":
        return evaluate_translation(
            loaded.model, loaded.tokenizers, pairs, tokens=tokens, tokenised=tokenised, **settings
        )
    assert loaded.run is not None
    recipe = Run.open(loaded.run).recipe
    recipe = recipe.model_copy(update={"search": recipe.search.model_copy(update=dict(settings))})
    return evaluate_task(recipe_task(recipe), loaded.model, loaded.tokenizers, pairs)
