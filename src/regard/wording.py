"""Words of messages: counts with their nouns, problems of values as sentences, secrets left out."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """The count with the noun in the singular or the plural, which ends in s unless given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MISSING = ("missing", "missing_argument")
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
    if kind == "string_pattern_mismatch" and context["pattern"] == r"\S":
        return f"is {shown(value)}; it should have a character that is not a space"
    if kind == "string_pattern_mismatch":
        return f"is {shown(value)}; it should match {context['pattern']}"
    expected = problem["msg"].removeprefix("Input should be ")
    joint = ":" if expected == problem["msg"] else "; it should be"
    return f"is {shown(value)}{joint} {expected}"


def shown(value: Any) -> str:
    """A value as Python writes it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


WORD = r"(?:token|secret|password|passwd|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|authorization)"
"""Words in the names of secrets: REGARD_TOKEN, --hf-token, ?api_key=. `tokens`, which are counted, is none of them."""
NAME = re.compile(rf"(?<![a-z0-9]){WORD}(?![a-z0-9])", re.IGNORECASE)
IN_TEXT = re.compile(
    r"(?<=://)[^\s/@]+(?=@)"  # https://user:password@host
    rf"|((?<![a-z0-9]){WORD}=(?:bearer )?|--(?!no-)(?:[a-z]+-)*{WORD} |\bbearer )[^\s&;,'\"]+",
    re.IGNORECASE,
)
"""The password in a URL, `token=…`, `--token …`, `Bearer …`; the group is what stays."""
SHORTEST = 6
"""Characters of a variable's value that is looked for in texts: `1` or `yes` stands everywhere."""


def is_secret(name: str) -> bool:
    """Whether a variable or a setting of this name holds a secret."""
    return NAME.search(name.replace("_", "-")) is not None


def redacted(value: Any) -> Any:
    """A text, or the texts in lists and values of dictionaries, with *** for what looks like a secret.

    That is the value of an environment variable whose name says so, and what follows such a name. What the user wrote
    into a recipe stays there.
    """
    if isinstance(value, dict):
        return {key: redacted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [redacted(each) for each in value]
    if not isinstance(value, str):
        return value
    for name, secret in os.environ.items():
        if len(secret) >= SHORTEST and is_secret(name):
            value = value.replace(secret, "***")
    return IN_TEXT.sub(lambda match: f"{match[1] or ''}***", value)
