"""Tasks: what the trainer does not know of a system. One file each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from ..recipe import Recipe
    from .task import Task

Name = Literal["translate", "write", "classify", "caption", "spell"]


def task_of(recipe: Recipe) -> Task:
    """The task that a recipe names: translate is `Translate` in translate.py, and so on."""
    home = import_module(f".{recipe.task}", __name__)
    return cast("Task", getattr(home, recipe.task.capitalize())(recipe))
