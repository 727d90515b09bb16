"""A first row that is probably the header of its file, where columns are read by number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..pair import Pair
    from ..row_readers import Column

LANGUAGES = ("english", "french", "german", "spanish", "italian", "en", "fr", "de", "es", "it")
NAMES = frozenset(
    [
        *("source", "target", "src", "tgt", "text", "label", "sentence", "translation", "input", "output"),
        *("question", "answer", "class", "category", "sentiment", "file", "path", "picture", "image", "sound"),
        *("caption", "transcript", *LANGUAGES),
    ]
)
"""What columns are often called."""


def header_remark(first: Pair, columns: Sequence[Column], option: str, names: Iterable[str] = ()) -> str | None:
    """What to say if both sides of the first pair of a file are names of columns; `names` are others that are known.

    `option` is how columns are named: `--columns {}` or `data.columns = [{}]`.
    """
    known = NAMES | {name.lower() for name in names}
    sides = [first.source, first.target]
    if not isinstance(columns[0], int) or not first.where.endswith(":1") or not known.issuperset(map(str.lower, sides)):
        return None
    return (
        f"{first.where} looks like a header ({first.source!r}, {first.target!r}), and it is read as a row, since "
        f"columns are numbered; if it is one, name them: {option.format(*sides)}"
    )
