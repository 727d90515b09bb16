"""What pydantic finds wrong with a value, as one sentence: what was given, and what was expected."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from .noun_count import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MISSING = ("missing", "missing_argument")
BOUNDS = {
    "less_than_equal": ("at most", "le"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "greater_than": ("greater than", "gt"),
}
LENGTHS = {
    "too_long": ("at most", "max_length"),
    "too_short": ("at least", "min_length"),
    "string_too_long": ("at most", "max_length"),
    "string_too_short": ("at least", "min_length"),
}
LONGEST = 80
"""Characters of a value that a sentence repeats."""


def unknown_key_sentence(key: str, names: Iterable[str]) -> str:
    """`names` are the keys that exist beside it."""
    known = sorted(names)
    near = difflib.get_close_matches(key, known, n=1)
    return "unknown key" + (f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}")


def problem_sentence(problem: Any, names: Iterable[str] = ()) -> str:
    """A sentence about one of `ValidationError.errors()`; `names` are the keys that were possible at its place."""
    kind, value, context = problem["type"], problem.get("input"), problem.get("ctx", {})
    if kind in UNKNOWN:
        return unknown_key_sentence(str(problem["loc"][-1]), names)
    if kind in MISSING:
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind in BOUNDS:
        words, name = BOUNDS[kind]
        return f"is {shown(value)}; it should be {words} {_number(context[name])}"
    if kind in LENGTHS:
        words, name = LENGTHS[kind]
        nouns = ("character",) if kind.startswith("string") else ("entry", "entries")
        return f"has {count_of(len(value), *nouns)}; it should have {words} {_number(context[name])}"
    if kind == "string_pattern_mismatch" and context["pattern"] == r"\S":
        return f"is {shown(value)}; it should have a character that is not a space"
    if kind == "string_pattern_mismatch":
        return f"is {shown(value)}; it should match {context['pattern']}"
    return f"is {shown(value)}; it should be {problem['msg'].removeprefix('Input should be ')}"


def shown(value: Any) -> str:
    """A value as Python writes it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
