"""Changes to the recipe of a run that has begun: more updates, more data, another rate; but the same model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .run_folder import RECIPE, has_corpus

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe

OPEN = ("about", "data.", "training.", "search.")
"""What may change, by name or by how it begins …"""
CLOSED = (
    "data.longest",
    "training.init",
    "training.init_parts",
    "training.init_vocabulary",
    "training.freeze",
    "training.part_rates",
    "training.ema",
    "training.strategy",
)
"""… except what decides the shapes of the model or the state of the optimizer."""


def changed_settings(old: Recipe, new: Recipe) -> dict[str, list[Any]]:
    """The settings that differ: dotted key → [old value, new value]."""
    before, after = flat_settings(old.to_dict()), flat_settings(new.to_dict())
    keys = dict.fromkeys([*before, *after])
    return {key: [before.get(key), after.get(key)] for key in keys if before.get(key) != after.get(key)}


def require_open(changed: dict[str, list[Any]], folder: object) -> None:
    """Raise an error that names a setting which a run that has begun cannot change."""
    for key, (old, new) in changed.items():
        if not key.startswith(OPEN) or key in CLOSED:
            raise ValueError(
                f"{folder} was begun with another recipe: {key} was {old!r:.60} and would be {new!r:.60}. A run can "
                "change [data], [training] and [search], but not what its model is made of; begin a new run, perhaps "
                f"with {weights_source(folder)}"
            )


def weights_source(folder: object) -> str:
    """How a new run takes the weights of the one in this folder."""
    file = Path(str(folder)) / RECIPE
    if not file.is_file() or has_corpus(file):
        return f"training.init={folder}"
    return f"a model into which the weights of {folder} are loaded before fit"


def flat_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "part_rates":
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
