"""The pairs a recipe names, split by split."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..data import Pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data import Pair
    from .recipe import Files, PhraseBook

Split = Literal["train", "valid", "test"]


class Corpus:
    """The files of a split, one after the other; each iteration reads them anew. `row` counts through all of them."""

    def __init__(self, parts: list[Pairs]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[Pair]:
        for row, pair in enumerate(chain.from_iterable(self.parts)):
            yield replace(pair, row=row)

    @property
    def skipped(self) -> int:
        """Bad rows left out in the latest iteration."""
        return sum(part.skipped for part in self.parts)


def read(data: Files | PhraseBook, split: Split) -> Corpus:
    """What the recipe names for a split."""
    if data.kind == "phrasebook":
        return Corpus([_phrases(data, split)])
    root = folder(data)
    parts = []
    for source in getattr(data, split):
        files = [root / name for name in ([source] if isinstance(source, str) else source)]
        for file in files:
            if not file.exists():
                raise ValueError(
                    f"data.{split}: there is no {file}; data.root is {data.root!r}: set it (or REGARD_DATA) to the "
                    "folder that holds the corpora"
                )
        if len(files) == 2:
            parts.append(Pairs(files[0], target=files[1], on_bad=data.on_bad))
        else:
            parts.append(Pairs(files[0], columns=tuple(data.columns), on_bad=data.on_bad))
    return Corpus(parts)


def folder(data: Files) -> Path:
    """`data.root`, with ${NAME} and ${NAME:-else} replaced from the environment."""

    def value(match: re.Match[str]) -> str:
        name, fallback = match[1], match[3]
        found = os.environ.get(name) or fallback
        if found is None:
            raise ValueError(f"data.root is {data.root!r}, and the environment has no {name}")
        return found

    return Path(re.sub(r"\$\{(\w+)(:-([^}]*))?\}", value, data.root)).expanduser()


def _phrases(data: PhraseBook, split: Split) -> Pairs:
    from ..data.phrasebook import pairs

    if split == "train":
        return Pairs(list(pairs(data.train, seed=data.seed)))
    # Both from sentences that training never sees, and no sentence in both.
    held_out = list(pairs(data.test + data.valid, seed=data.seed, split="test"))
    return Pairs(held_out[: data.test] if split == "test" else held_out[data.test :])
