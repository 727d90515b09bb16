"""Loads a recipe: one that ships or a file, merged with the recipes it is based on and with `key=value` overrides.

The recipes that ship are in recipes/*.toml, one file per task. A file has
- [parts.NAME]: settings that several recipes share, an architecture or a corpus, perhaps with a `base` of other parts,
  and with `about` where `regard recipes` lists it as a base for recipes of one's own;
- [[table]]: with [table.system] and [table.data], a recipe SYSTEM-DATA for every pair. Its bases are those of both, in
  the given `order` (later ones win); the settings in the table come after them;
- [[exceptions]]: settings merged into some `recipes` of a table;
- [recipes.NAME]: a recipe of its own.
"""

from __future__ import annotations

import difflib
import glob
import itertools
import os
import re
import tomllib
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..files import read_object
from .recipe_sections import COMMAND_LINE, DEFAULT_ROOT, CorpusFile, Reader, RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .recipe import Recipe

    Settings = dict[str, Any]


def fill_sections(values: dict[str, Any]) -> None:
    """Add what is missing of task, source, encoder, decoder or head, tied and data.longest to a recipe's values."""
    training = values.get("training")
    init = training.get("init") if isinstance(training, dict) else None
    if not isinstance(init, str) or not init or ("encoder" in values and {"decoder", "head"} & set(values)):
        return  # a recipe in full; that of a run that goes on no longer needs the model
    from ..data.tokenizer_pair import READER
    from .parameters import read_model

    folder, config, model = read_model(init)
    if "encoder" not in values:
        values["encoder"] = config["encoder"]
        reader = folder / READER
        stored = read_object(reader) if reader.is_file() else {"kind": model.encoder.reads}
        # A reader also stores what it learned from the training set; that is no setting.
        keys = {"kind", "size", "rate"}
        values.setdefault("source", {key: value for key, value in stored.items() if key in keys})
        data = values.get("data")
        if isinstance(data, dict):
            data.setdefault("longest", config["longest"])
    if not {"decoder", "head"} & set(values):
        values.update({part: config[part] for part in ("decoder", "head") if part in config})
        values.setdefault("tied", config.get("tied", "none"))
        values.setdefault("task", model.task)


SHIPPED = Path(__file__).parents[1] / "recipes"
DEFAULT_KINDS = {"tokenizer": "bpe", "source": "text"}
"""Of the sections that need not name theirs: [tokenizer] and [source]."""
NEED_KIND = ("data", "encoder", "decoder")
"""Sections that must name it. A part may have some settings of one, for whichever kind a recipe names."""


class Layer(NamedTuple):
    """One recipe or part as it is written, before it is merged with its bases."""

    label: str  # its file, or its name where it ships
    folder: Path  # where the files in its `base` start
    values: Settings
    origins: dict[str, str]  # dotted key: the place where it is written


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
    """Merge `top` into `values`. A section of another kind replaces the old one, since it has other keys."""
    for key, value in top.items():
        below = values.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            kind = below.get("kind", DEFAULT_KINDS.get(key))
            if value.get("kind", kind) == kind or (kind is None and key in NEED_KIND):
                merge(below, value)
                continue
        values[key] = deepcopy(value)


def _merge_settings(values: Settings, top: Settings) -> None:
    """The same among settings of one command line: all of them count, in whichever order `kind` comes."""
    for key, value in top.items():
        below = values.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge_settings(below, value)
        else:
            values[key] = value


def _files() -> Iterator[Settings]:
    for path in sorted(SHIPPED.glob("*.toml")):
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


def recipe_summaries() -> dict[str, str]:
    """The recipes that ship with regard: name → one line about it."""
    return {name: str(recipe.get("about", "")) for name, recipe in shipped_recipes().items()}


def recipe_tasks() -> dict[str, str]:
    """The task of each of them and its kind of data: name → "translate phrasebook"."""
    resolved = {name: resolved_settings(name) for name in shipped_recipes()}
    return {name: f"{values.get('task', 'translate')} {values['data']['kind']}" for name, values in resolved.items()}


def resolved_settings(name: str) -> Settings:
    """All settings of a recipe or part that ships, those of its bases included."""
    return _resolve(_find(name, Path()))[0]


def load_settings(name: str, values: Settings) -> Recipe:
    """A recipe of these settings."""
    return _load(name, Layer(name, Path(), values, {}), ())


def load_recipe(name: str | Path, overrides: Iterable[str] = (), *, finished: bool = False) -> Recipe:
    """The recipe of this name, or in this file, with `key=value` overrides; one RecipeError lists all errors.

    `finished`: of a run that is only looked at; keys of earlier versions are left out.
    """
    return _load(name, _find(str(name), Path()), overrides, finished=finished)


def _load(name: str | Path, layer: Layer, overrides: Iterable[str], *, finished: bool = False) -> Recipe:
    from .recipe import Recipe, with_longest

    values, origins = _resolve(layer)
    values.setdefault("name", Path(layer.label).stem if str(name).endswith(".toml") else layer.label)
    settings = _overrides(overrides)
    merge(values, settings)
    fill_sections(values)
    origins.update(dict.fromkeys(_key_paths(settings), COMMAND_LINE))
    training = values.get("training")
    init = isinstance(training, dict) and bool(training.get("init"))
    return Reader(origins, init=init, finished=finished).read(Recipe, with_longest(values), f"recipe {name}")


def _resolve(layer: Layer, above: tuple[str, ...] = ()) -> tuple[Settings, dict[str, str]]:
    """A layer's values over those of its bases, and where each is written."""
    if layer.label in above:
        raise ValueError(f"{layer.label} is based on itself: {' → '.join((*above, layer.label))}")
    own = dict(layer.values)
    bases = own.pop("base", [])
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ValueError(f"{layer.label}: base is {bases!r:.80}; it should be a list of recipe names or files")
    values: Settings = {}
    origins: dict[str, str] = {}
    for base in bases:
        try:
            below = _find(base, layer.folder)
        except ValueError as error:
            raise ValueError(f"{layer.label}: base: {error}") from None
        base_values, base_origins = _resolve(below, (*above, layer.label))
        base_values.pop("name", None)
        if below.label in shipped_parts():
            base_values.pop("about", None)  # it is about the part
        merge(values, base_values)
        origins.update(base_origins)
    merge(values, own)
    origins.update(layer.origins)
    return values, origins


def _find(name: str, folder: Path) -> Layer:
    """A file where the name looks like one, otherwise what ships under that name."""
    if name.endswith(".toml"):
        path = folder / name
        if path.is_dir():
            raise ValueError(f"{path} is a folder; a recipe is a file")
        if not path.is_file():
            files = [file.stem for file in path.parent.glob("*.toml") if not file.is_dir()]
            raise ValueError(f"there is no recipe file {path}{_suggestion(path.stem, files, '.toml')}")
        return _read(path.resolve())
    shipped = shipped_recipes() | shipped_parts()
    if name in shipped:
        return Layer(name, Path(), shipped[name], dict.fromkeys(_key_paths(shipped[name]), name))
    if (folder / f"{name}.toml").is_file():
        raise ValueError(f"no recipe that ships is called {name!r}; did you mean the file {name}.toml?")
    raise ValueError(
        f"no recipe is called {name!r}{_suggestion(name, shipped)}; `regard recipes` lists those that ship, or give a "
        ".toml file"
    )


def _suggestion(name: str, names: Iterable[str], suffix: str = "") -> str:
    """A name like this one. They are compared without the suffix, which would make all of them alike."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}{suffix}?" if near else ""


def _read(path: Path) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
        return Layer(str(path), path.parent, tomllib.loads(text), _origins(text, path.name))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def _origins(text: str, name: str) -> dict[str, str]:
    """Dotted key → file:line, for keys written one to a line under their [section], as people do."""
    places, section = {}, ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([\w.-]+)\]", line):
            section = header[1] + "."
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            places[section + key[1]] = f"{name}:{number}"
    return places


def _overrides(items: Iterable[str]) -> Settings:
    """`training.rate=0.001` … as nested values; a value is read as TOML, and as plain text where that fails."""
    values: Settings = {}
    wrong = []
    for item in items:
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
        _merge_settings(values, value)
    if wrong:
        raise RecipeError("the command line", wrong)
    return values


def _key_paths(values: Settings, prefix: str = "") -> list[str]:
    keys = []
    for key, value in values.items():
        keys.extend(_key_paths(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key])
    return keys


# The files of a corpus. This needs no PyTorch, so that a missing one is reported before that is imported.

VARIABLE = re.compile(r"\$\{(\w+)(:-([^}]*))?\}")
"""${NAME} and ${NAME:-else} in a `data.root`."""
MOST_BESIDE = 10_000
"""Names of a folder that are compared with one that is misspelt."""


def folder(root: str) -> Path:
    """A `data.root`, with ${NAME} and ${NAME:-else} replaced from the environment."""

    def value(match: re.Match[str]) -> str:
        setting = os.environ.get(match[1]) or match[3]
        if setting is None:
            raise ValueError(f"data.root is {root!r}, and the environment has no {match[1]}")
        return setting

    return Path(VARIABLE.sub(value, root)).expanduser()


def file_names(source: CorpusFile) -> list[str]:
    return [source] if isinstance(source, str) else source


def expand_patterns(root: Path, sources: list[CorpusFile]) -> list[CorpusFile]:
    """The files that names with * stand for, each file once.

    A pattern without files stays as it is, and is then reported as a missing file.
    """
    corpora: dict[tuple[str, ...], CorpusFile] = {}
    for source in sources:
        names: list[CorpusFile] = [source]
        if isinstance(source, str) and "*" in source:
            names = [*sorted(glob.glob(source, root_dir=root))] or names
        for name in names:
            corpora.setdefault(tuple(os.path.realpath(root / file) for file in file_names(name)), name)
    return list(corpora.values())


def require_path(file: Path, split: str, root: str) -> Path:
    if file.exists():
        return file
    message = f"data.{split}: there is no {file.absolute()}"
    beside = [other.name for other in itertools.islice(file.parent.glob("*"), MOST_BESIDE)]
    if near := difflib.get_close_matches(file.name, beside, n=1):
        raise ValueError(f"{message}; did you mean {near[0]}?")
    variable = VARIABLE.search(root)
    setting = f"it (or the environment variable {variable[1]})" if variable else "it"
    raise ValueError(
        f"{message}; data.root is {root!r}, from where the command is run: set {setting} to the folder that holds the "
        "corpora"
    )


def require_files(name: str, overrides: Iterable[str] = ()) -> None:
    """Raise the error of a missing recipe, and of a missing file of its corpus where that is made of files."""
    values, _ = _resolve(_find(name, Path()))
    merge(values, _overrides(overrides))
    data = values.get("data")
    if (
        not isinstance(data, dict)
        or data.get("kind") not in ("files", "text")
        or not isinstance(data.get("root", ""), str)
    ):
        return
    root = str(data.get("root", DEFAULT_ROOT))
    for split in ("train", "valid", "test", "files"):
        sources = data.get(split, [])
        for source in sources if isinstance(sources, list) else ():
            for file in source if isinstance(source, list) else [source]:
                require_path(folder(root) / str(file), split, root)


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
    from .recipe import recipe_toml, settings_toml

    values = resolved_settings(name)
    short = f'# base = ["{name}"] stands for all of this'
    if name in corpora():
        return f"# {values.pop('about')}\n{short}; a recipe also needs an architecture\n{settings_toml(values)}"
    recipe = load_settings(name, {**values, "data": OWN_DATA})
    return f"{short} but [data], whose files are yours\n{recipe_toml(recipe)}"


class Switch(NamedTuple):
    """A part that `regard break` leaves out: recipes/break.toml."""

    about: str
    recipe: str
    settings: list[str]
    off: list[str]
    generates: bool = False

    def load(self, *, broken: bool, settings: Sequence[str] = ()) -> Recipe:
        """The recipe of one of the two runs; `settings` are the reader's own and come last."""
        every = ["training.updates=150", "training.validate_every=25", "training.save_every=150", "training.average=1"]
        return load_recipe(self.recipe, [*every, *self.settings, *(self.off if broken else ()), *settings])


@cache
def switches() -> dict[str, Switch]:
    return {name: Switch(**switch) for file in _files() for name, switch in file.get("switches", {}).items()}
