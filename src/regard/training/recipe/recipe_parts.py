"""The parts of the recipes that ship, as bases for recipes of one's own: architectures and corpora."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .recipe_loader import load_settings, resolved_settings, shipped_parts
from .recipe_writer import recipe_toml, settings_toml

if TYPE_CHECKING:
    from collections.abc import Callable

OWN_DATA = {"kind": "files", "root": ".", "train": ["train.csv"], "valid": ["valid.csv"]}
"""What stands for the corpus of one's own where an architecture is printed."""


def architectures() -> dict[str, str]:
    """The parts that hold all of a system but its corpus: name → one line about it."""
    return _summaries(lambda part: {"encoder", "decoder"} <= set(part) or "head" in part, corpus=False)


def corpora() -> dict[str, str]:
    """The parts that hold a corpus, its tokenizer and how long to train on it: name → one line about it."""
    return _summaries(lambda part: True, corpus=True)


def _summaries(holds: Callable[[dict[str, Any]], bool], *, corpus: bool) -> dict[str, str]:
    named = {name: str(part["about"]) for name, part in shipped_parts().items() if "about" in part}
    resolved = {name: resolved_settings(name) for name in named}
    chosen = (name for name, part in resolved.items() if holds(part) and ("kind" in part.get("data", {})) == corpus)
    return {name: named[name] for name in sorted(chosen)}


def part_toml(name: str) -> str:
    """An architecture as a whole recipe with defaults, for files of one's own; a corpus as the settings that it has."""
    values = resolved_settings(name)
    short = f'# base = ["{name}"] stands for all of this'
    if name in corpora():
        return f"# {values.pop('about')}\n{short}; a recipe also needs an architecture\n{settings_toml(values)}"
    recipe = load_settings(name, {**values, "data": OWN_DATA})
    return f"{short} but [data], whose files are yours\n{recipe_toml(recipe)}"
