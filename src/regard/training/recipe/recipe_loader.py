"""Where recipes come from: those that ship, a file, what they are based on, and `key=value` on top."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from .recipe import Recipe
from .recipe_errors import RecipeError, recipe_error

if TYPE_CHECKING:
    from collections.abc import Iterable

SHIPPED = Path(__file__).parents[2] / "recipes"
PARTS = SHIPPED / "parts"  # what several recipes share: an architecture, a corpus
LARGEST = 1 << 20  # bytes; a recipe is read whole


def recipe_summaries() -> dict[str, str]:
    """The recipes that ship with regard: name → one line about it."""
    return {file.stem: str(_read(file)[0].get("about", "")) for file in sorted(SHIPPED.glob("*.toml"))}


def recipe_tasks() -> dict[str, str]:
    """What each of them trains for, and on what kind of data: name → "translate phrasebook"."""
    found = {}
    for file in sorted(SHIPPED.glob("*.toml")):
        values, _ = _resolve(file, ())
        found[file.stem] = f"{values.get('task', 'translate')} {values['data']['kind']}"
    return found


def architectures() -> list[str]:
    """What a recipe of one's own can be based on: all of a system but its corpus."""
    parts = {file.stem: _read(file)[0] for file in PARTS.glob("*.toml")}
    data = tuple(f"-{name}" for name, part in parts.items() if "data" in part)
    whole = (name for name, part in parts.items() if {"decoder", "head"} & set(part) and "data" not in part)
    return sorted(name for name in whole if not name.endswith(data))


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of this name, or in this file, with `key=value` overrides on top; every mistake is told at once."""
    path = _find(str(name), Path())
    values, origins = _resolve(path, ())
    values.setdefault("name", path.stem)
    given = _overrides(overrides)
    _merge(values, given)
    origins.update(dict.fromkeys(_flat(given), "command line"))
    try:
        # Through JSON: there pydantic's strict mode takes a mapping for a dataclass, and a list is a list.
        return Recipe.model_validate_json(json.dumps(values, default=str))  # TOML has dates; no key of ours has
    except ValidationError as error:
        raise recipe_error(error, Recipe, f"recipe {name}", origins) from None


def _resolve(path: Path, above: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """A file's values laid over those of its bases, and where each was written."""
    path = path.resolve()
    if path in above:
        raise ValueError(f"{path} is based on itself: {' → '.join(str(file) for file in (*above, path))}")
    own, lines = _read(path)
    bases = own.pop("base", [])
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ValueError(f"{path}: base is {bases!r}; it should be a list of recipe names or files")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for base in bases:
        try:
            found = _find(base, path.parent)
        except ValueError as error:
            raise ValueError(f"{path}: base: {error}") from None
        below, where = _resolve(found, (*above, path))
        below.pop("name", None)
        _merge(values, below)
        origins.update(where)
    _merge(values, own)
    origins.update(lines)
    return values, origins


def _find(name: str, beside: Path) -> Path:
    """A file where the name looks like one, otherwise what ships under that name."""
    if name.endswith(".toml"):
        path = beside / name
        if path.is_dir():
            raise ValueError(f"{path} is a folder; a recipe is a file")
        if not path.is_file():
            raise ValueError(f"there is no recipe file {path}{_near(path.name, path.parent.glob('*.toml'))}")
        return path
    for folder in (SHIPPED, PARTS):
        if re.fullmatch(r"[\w.-]+", name) and (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    if (beside / f"{name}.toml").is_file():
        raise ValueError(f"no recipe that ships is called {name!r}; did you mean the file {name}.toml?")
    near = _near(name, (file.with_suffix("") for folder in (SHIPPED, PARTS) for file in folder.glob("*.toml")))
    raise ValueError(
        f"no recipe is called {name!r}{near}; `regard recipes` lists those that ship, or give a .toml file"
    )


def _near(name: str, files: Iterable[Path]) -> str:
    near = difflib.get_close_matches(name, [file.name for file in files if not file.is_dir()], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is {path.stat().st_size:,} bytes; that is no recipe")
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), _origins(text, path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def _origins(text: str, name: str) -> dict[str, str]:
    """Dotted key → file:line, for keys written one to a line under their [section], as people do."""
    found, section = {}, ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([\w.-]+)\]", line):
            section = header[1] + "."
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            found[section + key[1]] = f"{name}:{number}"
    return found


def _overrides(given: Iterable[str]) -> dict[str, Any]:
    """`training.rate=0.001` … as nested values; a value is read as TOML, and as plain text where that fails."""
    values: dict[str, Any] = {}
    wrong = []
    for item in given:
        key, equals, text = item.partition("=")
        names = key.strip().split(".")
        if not equals or not all(re.fullmatch(r"[\w-]+", name) for name in names):
            wrong.append(f"{item!r} is not key=value, such as training.rate=0.001")
            continue
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        for name in reversed(names):
            value = {name: value}
        _merge(values, value)
    if wrong:
        raise RecipeError("the command line", wrong)
    return values


def _merge(values: dict[str, Any], top: dict[str, Any]) -> None:
    """Lay `top` over `values`. A section of another kind replaces the one below: their keys are not the same keys."""
    for key, value in top.items():
        below = values.get(key)
        if (
            isinstance(below, dict)
            and isinstance(value, dict)
            and value.get("kind", below.get("kind")) == below.get("kind")
        ):
            _merge(below, value)
        else:
            values[key] = value


def _flat(values: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in values.items():
        keys.extend(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key])
    return keys
