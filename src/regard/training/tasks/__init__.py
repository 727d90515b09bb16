"""Tasks: what the trainer must know of each kind of system. One file per task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe
    from .task import Task

Name = Literal["translate", "write", "classify", "caption", "spell"]
_CLASS: dict[Name, tuple[str, str]] = {  # task of a recipe: its module and its class
    "translate": ("translate_task", "Translate"),
    "write": ("language_model_task", "Write"),
    "classify": ("classify_task", "Classify"),
    "caption": ("caption_task", "Caption"),
    "spell": ("spell_task", "Spell"),
}


def task_of(recipe: Recipe) -> Task:
    """The task that a recipe names. Its module is imported here and not before: each needs libraries of its own."""
    module, name = _CLASS[recipe.task]
    return cast("Task", getattr(import_module(f".{module}", __name__), name)(recipe))
