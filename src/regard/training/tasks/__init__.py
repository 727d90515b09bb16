"""Tasks: what the trainer must know of each kind of system. One file per task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ...models.config import TaskName
    from ..recipe.recipe import Recipe
    from .task import Task

_CLASS: dict[TaskName, tuple[str, str]] = {  # task of a recipe: its module and its class
    "translate": ("translate_task", "TranslateTask"),
    "write": ("language_model_task", "LanguageModelTask"),
    "classify": ("classify_task", "ClassifyTask"),
    "caption": ("caption_task", "CaptionTask"),
    "spell": ("spell_task", "SpellTask"),
}


def recipe_task(recipe: Recipe) -> Task:
    """The task that a recipe names. Its module is imported here and not before: each needs libraries of its own."""
    module, name = _CLASS[recipe.task]
    return cast("Task", getattr(import_module(f".{module}", __name__), name)(recipe))
