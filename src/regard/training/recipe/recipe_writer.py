"""A recipe written out in full: every key, its value, and what it means, as TOML that loads again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from .model_notes import MODEL_NOTES

if TYPE_CHECKING:
    from .recipe import Recipe

WIDTH = 44  # column of the comments, where a line leaves room for them
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")  # what TOML forbids in a comment, ends of lines among them


def recipe_toml(recipe: Recipe) -> str:
    """The recipe as commented TOML, defaults included: a run can be repeated from this file alone."""
    head: list[str] = []
    sections: list[str] = []
    for name in type(recipe).model_fields:
        value = getattr(recipe, name)
        if name == "about" and value:
            head.insert(0, f"# {CONTROL.sub(' ', value)}")  # a comment is one line
        if value is None:  # a section that this task has no use for
            continue
        if isinstance(value, bool | int | float | str | list):
            head.append(_line(name, value, type(recipe).model_fields[name].description))
        else:
            sections.extend(["", f"[{name}]", *_section(value)])
    return "\n".join([*head, *sections]) + "\n"


def settings_toml(values: dict[str, Any]) -> str:
    """Settings as they are, without defaults and comments."""
    head = [_line(key, value, None) for key, value in values.items() if not isinstance(value, dict)]
    sections = {key: value for key, value in values.items() if isinstance(value, dict)}
    for name, section in sections.items():
        head += ["", f"[{name}]", *(_line(key, value, None) for key, value in section.items())]
    return "\n".join(head).strip("\n") + "\n"


def _section(part: Any) -> list[str]:
    if isinstance(part, BaseModel):
        known = type(part).model_fields
        return [_line(name, getattr(part, name), known[name].description) for name in known]
    return [_line(name, value, MODEL_NOTES.get(name)) for name, value in vars(part).items()]


def _line(key: str, value: object, note: str | None) -> str:
    line = f"{key} = {_value(value)}"
    return f"{line:<{WIDTH}}  # {note}" if note else line


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML's basic strings are JSON's, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        items = (f"{_value(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(items)} }}" if value else "{}"
    return repr(value)  # int and float: TOML reads what Python writes, 1e-05 included
