"""The two sides of a system: what reads its source, and the vocabulary it writes in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import source_reader
from .label_set import LabelSet
from .source_reader import READER
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from .pair import Pair
    from .tokenizer import Kind

SHARED, SOURCE, TARGET = "tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"
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
        punctuation: bool = False,
        source: Any = None,
        labels: bool = False,
    ) -> TokenizerPair:
        """Learn from both sides together, or (reading `pairs` twice) from each alone; `size` is that of each.

        With `source`, a reader of what is no text, only the target is learned; with `labels` it is a set of them.
        """
        how = {"lowercase": lowercase, "punctuation": punctuation}
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
        source = SOURCE if isinstance(self.source, Tokenizer) else READER
        target = LABELS if isinstance(self.target, LabelSet) else TARGET
        parts = {SHARED: self.source} if self.joint else {source: self.source, target: self.target}
        for name, part in parts.items():
            if name == READER:
                source_reader.save(part, folder)
            else:
                part.save(folder / name)
        for stale in {SHARED, SOURCE, TARGET, READER, LABELS} - parts.keys():
            (folder / stale).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TokenizerPair:
        folder = Path(folder)
        files = {name for name in (SHARED, SOURCE, TARGET, READER, LABELS) if (folder / name).exists()}
        if SHARED in files:
            tokenizer = Tokenizer.load(folder / SHARED)
            return cls(tokenizer, tokenizer)
        if not files & {SOURCE, READER} or not files & {TARGET, LABELS}:
            raise ValueError(f"{folder} holds neither {SHARED} nor {SOURCE} and {TARGET}")
        return cls(
            Tokenizer.load(folder / SOURCE) if SOURCE in files else source_reader.load(folder),
            Tokenizer.load(folder / TARGET) if TARGET in files else LabelSet.load(folder / LABELS),
        )
