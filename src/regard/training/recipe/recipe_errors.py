"""Turns the errors that pydantic finds in a recipe into one message with a line for each."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from ...models.config_base import UNKNOWN_KIND
from ...noun_count import count_of
from ...validation_sentences import UNKNOWN, problem_sentence, shown, unknown_key_sentence
from .other_names import other_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COMMAND_LINE = "command line"
"""The origin of a key that is no place in a file."""
LIST_EXAMPLES: dict[str, list[Any]] = {
    "train": ["train.tsv"],
    "valid": ["valid.tsv"],
    "test": ["test.tsv"],
    "files": ["text.txt"],
    "columns": [0, 1],
    "weights": [1, 3],
    "tags": ["<2fr>", "<2es>"],
    "decoders": ["<2fr>", "<2es>"],
    "init_parts": ["encoder"],
    "freeze": ["encoder"],
    "betas": [0.9, 0.98],
    "loggers": ["wandb"],
    "windows": [3, 4, 5],
}
"""What the keys that hold lists may hold."""
PLUGIN = "plugin"  # the type of an error in a section of a plug-in, whose keys our schema does not have


class RecipeError(ValueError):
    """All errors of a recipe; the message has a line for each."""

    def __init__(self, title: str, lines: list[str]) -> None:
        super().__init__("\n  ".join([f"{title} has {count_of(len(lines), 'error')}:", *lines]))


def recipe_error(
    error: ValidationError, schema: type[BaseModel], title: str, origins: Mapping[str, str], *, init: bool = False
) -> RecipeError:
    """A line per problem, with its dotted key and, where it is known, the place it was written.

    `init`: the recipe starts from a trained model.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        is_plugin = problem["type"] == PLUGIN
        key, names = _locate(problem["loc"][:-1] if is_plugin else problem["loc"], schema)
        if is_plugin:
            key = f"{key}.{problem['loc'][-1]}"
        place = f" ({origins[key]})" if key in origins else ""
        # A value that fits no member of a union is one error, though pydantic reports it once per member.
        sentence = _sentence(problem, names)
        if problem["type"] == "list_type":
            sentence += f", such as {_list_example(key, problem['input'], origins.get(key))}"
        elif problem["type"] in ("missing", "union_tag_not_found"):
            sentence += _remedy(key, init=init)
        lines.setdefault(key, f"{key or 'recipe'}{place}: {sentence}")
    return RecipeError(title, list(lines.values()))


def plugin_error(section: type[BaseModel], error: ValidationError) -> ValidationError:
    """The errors of a section that a plug-in defines, as errors of the recipe."""
    names = sorted(section.model_fields)
    return _plugin_error(
        (".".join(map(str, each["loc"])), _sentence(each, names)) for each in error.errors(include_url=False)
    )


def refuse_unknown_keys(section: type[Any], values: dict[str, Any]) -> None:
    """The same for a dataclass, which says which keys it has."""
    names = sorted(field.name for field in fields(section))
    if unknown := sorted(set(values) - set(names)):
        raise _plugin_error((key, _unknown_key(key, names)) for key in unknown)


def _plugin_error(problems: Iterable[tuple[str, str]]) -> ValidationError:
    errors = [
        InitErrorDetails(type=PydanticCustomError(PLUGIN, "{sentence}", {"sentence": sentence}), loc=(key,), input=None)
        for key, sentence in problems
    ]
    return ValidationError.from_exception_data("plug-in", errors)


def _unknown_key(key: str, names: list[str]) -> str:
    other = other_name(key, names)
    return unknown_key_sentence(key, names) if other is None else f"unknown key; {other}"


def _sentence(problem: Any, names: list[str]) -> str:
    kind = problem["type"]
    if kind == PLUGIN:
        return str(problem["ctx"]["sentence"])
    if kind in UNKNOWN:
        return _unknown_key(str(problem["loc"][-1]), names)
    if kind == "union_tag_not_found":
        return "needs a kind"
    if kind == "union_tag_invalid":
        return f"kind is {problem['ctx']['tag']!r}; known kinds are {problem['ctx']['expected_tags']}; {UNKNOWN_KIND}"
    if kind == "list_type":
        return f"is {shown(problem['input'])}; it should be a list"
    return problem_sentence(problem, names)


def _list_example(key: str, value: Any, place: str | None) -> str:
    """A list as it should be written. A text that came without its quotes, as a shell takes them off, gets them."""
    example = LIST_EXAMPLES.get(key.rpartition(".")[2], ["name"])
    if isinstance(value, tuple | set):
        example = list(value)
    elif isinstance(value, str) and isinstance(example[0], str):
        names = [name.strip(" '\"") for name in value.strip("[] ").split(",")]
        example = [name for name in names if name] or example
    written = json.dumps(example, ensure_ascii=False)
    return shlex.quote(f"{key}={written}") if place == COMMAND_LINE else written


def _remedy(key: str, *, init: bool) -> str:
    """What to do about a section that is missing, or that has settings but no kind."""
    if key == "data":
        return '; write a [data] section, or base = ["phrasebook"]: `regard recipes` lists the corpora'
    if key not in ("encoder", "decoder", "head"):
        return ""
    if init:
        return f"; leave [{key}] out: with training.init it is that of the model; or write it in full, with its kind"
    return (
        f'; write base = ["transformer"], or another architecture that `regard recipes` lists; or [{key}] with its '
        "kind; or training.init = MODEL, to have that of a trained model"
    )


def _locate(location: tuple[int | str, ...], schema: Any) -> tuple[str, list[str]]:
    """The dotted key of a problem, and the names that were possible beside it.

    pydantic puts the kind of a section (`encoder`, `rnn`, `width`) and the member of a union into the location; those
    are no keys of the recipe.
    """
    key: list[str] = []
    names: list[str] = []
    for place in location:
        if len(options := _options(schema)) == 1 and not _tags(options[0]):  # of a section that may be left out
            schema = options[0]
        known = _fields(schema)
        tags = {tag: option for option in _options(schema) for tag in _tags(option)}
        if known:
            names = sorted(known)
            key.append(str(place))
            schema = known.get(str(place))
        elif place in tags:
            schema = tags[place]
        elif isinstance(place, int):
            key.append(str(place))
    return ".".join(key), names


def _fields(schema: Any) -> dict[str, Any]:
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return {name: field.annotation for name, field in schema.model_fields.items()}
    if is_dataclass(schema):
        return {field.name: field.type for field in fields(schema)}
    return {}


def _options(schema: Any) -> tuple[Any, ...]:
    return tuple(option for option in get_args(schema) if _fields(option))


def _tags(option: Any) -> tuple[Any, ...]:
    if isinstance(option, type) and issubclass(option, BaseModel):
        return get_args(option.model_fields["kind"].annotation) if "kind" in option.model_fields else ()
    return tuple(field.default for field in fields(option) if field.name == "kind")
