"""The recipes that ship, as written in recipes/*.toml: one file per task.

A file has
- [parts.NAME]: settings that several recipes share, an architecture or a corpus, perhaps with a `base` of other parts;
- [[table]]: with [table.system] and [table.data], a recipe SYSTEM-DATA for every pair. Its bases are those of both, in
  the given `order` (later ones win); the settings in the table come after them;
- [[exceptions]]: settings laid over some `recipes` of a table;
- [recipes.NAME]: a recipe of its own.
"""

from __future__ import annotations

import tomllib
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    Settings = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "recipes"


@cache
def shipped_parts() -> dict[str, Settings]:
    """What recipes are based on, by name."""
    return {name: part for file in _files() for name, part in file.get("parts", {}).items()}


@cache
def shipped_recipes() -> dict[str, Settings]:
    """Each recipe as a file of its own would have it: `about`, `base`, and the settings that differ from its bases."""
    recipes = {name: recipe for file in _files() for name, recipe in _recipes(file).items()}
    return {name: recipes[name] for name in sorted(recipes, key=lambda name: f"{name}.")}  # x-small before x


def merge(values: Settings, top: Settings) -> None:
    """Lay `top` over `values`. A section of another kind replaces the one below: their keys are not the same keys."""
    for key, value in top.items():
        below = values.get(key)
        if (
            isinstance(below, dict)
            and isinstance(value, dict)
            and value.get("kind", below.get("kind")) == below.get("kind")
        ):
            merge(below, value)
        else:
            values[key] = deepcopy(value)


def _files() -> Iterator[Settings]:
    for path in sorted(FOLDER.glob("*.toml")):
        yield tomllib.loads(path.read_text(encoding="utf-8"))


def _recipes(file: Settings) -> dict[str, Settings]:
    recipes: dict[str, Settings] = {}
    for table in file.get("table", []):
        for system_name, system in table["system"].items():
            for data_name, data in table["data"].items():
                sides = {"system": system, "data": data}
                recipe: Settings = {}
                for side in table["order"]:
                    merge(recipe, sides[side])
                recipe["base"] = [base for side in table["order"] for base in sides[side].get("base", [])]
                recipe["about"] = ", ".join(side["about"] for side in sides.values() if "about" in side)
                recipes[f"{system_name}-{data_name}"] = recipe
    for exception in file.get("exceptions", []):
        for name in exception["recipes"]:
            merge(recipes[name], {key: value for key, value in exception.items() if key != "recipes"})
    recipes.update(file.get("recipes", {}))
    return recipes
