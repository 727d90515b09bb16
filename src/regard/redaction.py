"""What looks like a secret is left out of what is recorded, logged, or printed as an error."""

from __future__ import annotations

import os
import re
from typing import Any

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
