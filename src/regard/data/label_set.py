"""Labels: the target side of a classifier's pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic_write import write_text
from ..json_file import read_json
from .batch import UNKNOWN

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence


FIRST = UNKNOWN + 1  # the id of the first label: those before are special in every vocabulary of ours
MOST = 10_000


def quoted(name: str) -> str:
    """A label for a message, cut to 40 characters: it may be a whole text by error."""
    return repr(name if len(name) <= 40 else f"{name[:40]}…")


class UnknownLabelError(ValueError):
    """A label that the training data does not have."""


class LabelSet:
    """A closed set of names, each one token whatever it is made of: label n has the id FIRST + n."""

    def __init__(self, names: Sequence[str]) -> None:
        if not 2 <= len(names) <= MOST:
            raise ValueError(f"a classifier needs 2 to {MOST:,} labels, got {len(names):,}: {', '.join(names[:5])}")
        if len(set(names)) < len(names):
            raise ValueError("every label is named once")
        self.names = list(names)
        self._ids = {name: FIRST + n for n, name in enumerate(names)}

    @classmethod
    def train(cls, texts: Iterable[str]) -> LabelSet:
        """All labels that occur, sorted; numbers as numbers."""
        return cls(cls.sorted_names(set(texts)))

    @staticmethod
    def sorted_names(names: set[str]) -> list[str]:
        numbers = all(re.fullmatch(r"-?[0-9]{1,15}", name) for name in names)
        # 1 and 01 are two labels and one number: between them their spelling decides, and not the order of a set.
        return sorted(names, key=lambda name: (int(name) if numbers else 0, name))

    def __len__(self) -> int:
        return FIRST + len(self.names)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            if text not in self._ids:
                known = ", ".join(self.names[:10]) + (" …" if len(self.names) > 10 else "")
                raise UnknownLabelError(f"no label is called {quoted(text)}; the training data has {known}")
        return [[self._ids[text]] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.names[i - FIRST] for i in ids if i >= FIRST)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, json.dumps(self.names, ensure_ascii=False, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LabelSet:
        names = read_json(Path(path))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{path} holds no labels: it should be a JSON list of names")
        try:
            return cls(names)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
