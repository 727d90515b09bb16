"""All exercises of the course by name. A module of exercises has a list EXERCISES; it is added to `MODULES` here."""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING

from . import (
    exercises_alignment,
    exercises_classification,
    exercises_heads_and_masks,
    exercises_lookup,
    exercises_recurrent,
    exercises_self_attention,
    exercises_transformer,
    exercises_transformer_layer,
)

if TYPE_CHECKING:
    from .exercise import Exercise

MODULES = (
    exercises_lookup,
    exercises_self_attention,
    exercises_heads_and_masks,
    exercises_transformer_layer,
    exercises_transformer,
    exercises_recurrent,
    exercises_alignment,
    exercises_classification,
)


@cache
def _table() -> dict[str, Exercise]:
    tasks = [task for module in MODULES for task in module.EXERCISES]
    return {task.name: task for task in sorted(tasks, key=lambda task: task.chapter)}


def questions(chapter: int | None = None) -> list[Exercise]:
    """The exercises of one chapter, or all of them in the order of the course."""
    return [task for task in _table().values() if chapter in (None, task.chapter)]


def exercise(name: str) -> Exercise:
    if name not in _table():
        near = difflib.get_close_matches(name, _table(), 1)
        hint = f"did you mean {near[0]!r}?" if near else "questions() lists them"
        raise KeyError(f"no exercise is called {name!r}; {hint}")
    return _table()[name]
