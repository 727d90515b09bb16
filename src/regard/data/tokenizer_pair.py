"""The two sides of a system: what reads its source, and the vocabulary it writes in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import source_reader
from .label_set import LabelSet
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from .pair import Pair
    from .tokenizer import Kind

LABELS = "labels.json"


@dataclass
class TokenizerPair:
    """`source` reads text, pictures, sound or nothing; `target` is a vocabulary, or a classifier's labels.

    One and the same object where both sides share a vocabulary.
    """

    source: Any  # a Tokenizer, or another SourceReader
    target: Any  # a Tokenizer, or LabelSet

    @classmethod
    def train(
        cls,
        kind: Kind,
        size: int,
        pairs: Iterable[Pair],
        *,
        joint: bool = True,
        lowercase: bool = False,
        source: Any = None,
        labels: bool = False,
    ) -> TokenizerPair:
        """Learn from both sides together, or (reading `pairs` twice) from each alone; `size` is that of each.

        With `source`, a reader of what is no text, only the target is learned; with `labels` it is a set of them.
        """
        how = {"lowercase": lowercase}
        if joint and source is None and not labels:
            both = chain.from_iterable((pair.source, pair.target) for pair in pairs)
            shared = Tokenizer.train(kind, size, both, **how)
            return cls(shared, shared)
        reads = source or Tokenizer.train(kind, size, (pair.source for pair in pairs), **how)
        if labels:
            return cls(reads, LabelSet.train(pair.target for pair in pairs))
        return cls(reads, Tokenizer.train(kind, size, (pair.target for pair in pairs), **how))

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def source_size(self) -> int:
        """Of the source's vocabulary; 0 where it is no text."""
        return len(self.source) if isinstance(self.source, Tokenizer) else 0

    def save(self, folder: str | os.PathLike[str]) -> None:
        """tokenizer.json where both sides share it; else tokenizer.source.json or reader.json, and
        tokenizer.target.json or labels.json."""
        folder = Path(folder)
        shared, sides = _files(folder)
        written = set()
        if self.joint:
            self.source.save(shared)
            written.add(shared)
        else:
            if isinstance(self.source, Tokenizer):
                self.source.save(sides[0])
                written.add(sides[0])
            else:
                source_reader.save(self.source, folder)
                written.add(folder / source_reader.READER)
            place = folder / LABELS if isinstance(self.target, LabelSet) else sides[1]
            self.target.save(place)
            written.add(place)
        for stale in {shared, *sides, folder / source_reader.READER, folder / LABELS} - written:
            stale.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TokenizerPair:
        folder = Path(folder)
        shared, sides = _files(folder)
        if shared.exists():
            tokenizer = Tokenizer.load(shared)
            return cls(tokenizer, tokenizer)
        read, labels = folder / source_reader.READER, folder / LABELS
        if not (sides[0].exists() or read.exists()) or not (sides[1].exists() or labels.exists()):
            raise ValueError(f"{folder} holds neither {shared.name} nor {sides[0].name} and {sides[1].name}")
        return cls(
            Tokenizer.load(sides[0]) if sides[0].exists() else source_reader.load(folder),
            Tokenizer.load(sides[1]) if sides[1].exists() else LabelSet.load(labels),
        )


def _files(folder: Path) -> tuple[Path, list[Path]]:
    return folder / "tokenizer.json", [folder / "tokenizer.source.json", folder / "tokenizer.target.json"]
