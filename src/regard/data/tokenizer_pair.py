"""The two sides of a system: what reads its source, and the vocabulary it writes in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ..atomic_write import write_text
from ..json_file import read_object
from ..plugins import load_plugin
from . import source_reader
from .label_set import LabelSet
from .source_reader import READER
from .tokenizer import Kind, Tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from .pair import Pair

SHARED, SOURCE, TARGET = "tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"
LABELS = "labels.json"
PLUGINS = "plugins.json"  # the classes of tokenizers that are plug-ins, by file
FILES = (SHARED, SOURCE, TARGET, READER, LABELS, PLUGINS)
"""All that `TokenizerPair.save` may write."""


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
        kind: str,
        size: int,
        pairs: Iterable[Pair],
        *,
        joint: bool = True,
        lowercase: bool = False,
        punctuation: bool = False,
        source: Any = None,
        labels: bool = False,
        slots: int = 0,
    ) -> TokenizerPair:
        """Learn from both sides together, or (reading `pairs` twice) from each alone; `size` is that of each.

        With `source`, a reader of what is no text, only the target is learned; with `labels` it is a set of them.
        """
        how: dict[str, Any] = {"lowercase": lowercase, "punctuation": punctuation}
        how |= {"slots": slots} if slots else {}
        text = _tokenizer_class(kind)
        if joint and source is None and not labels:
            both = chain.from_iterable((pair.source, pair.target) for pair in pairs)
            shared = text.train(kind, size, both, **how)
            return cls(shared, shared)
        reads = source or text.train(kind, size, (pair.source for pair in pairs), **how)
        if labels:
            return cls(reads, LabelSet.train(pair.target for pair in pairs))
        return cls(reads, text.train(kind, size, (pair.target for pair in pairs), **how))

    def words_to_copy(self, source: str) -> dict[int, str]:
        """The words of a source that are not in the vocabulary, by the ids a decoder copies; mostly {}."""
        return self.source.words_to_copy(source) if isinstance(self.source, Tokenizer) else {}

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
        plugins = {name: part.plugin for name, part in parts.items() if isinstance(part, Tokenizer) and part.plugin}
        if plugins:
            write_text(folder / PLUGINS, json.dumps(plugins, indent=2) + "\n")
        stale = set(FILES) - parts.keys() - ({PLUGINS} if plugins else set())
        for name in stale:
            (folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TokenizerPair:
        folder = Path(folder)
        files = {name for name in (SHARED, SOURCE, TARGET, READER, LABELS) if (folder / name).exists()}
        plugins = read_object(folder / PLUGINS) if (folder / PLUGINS).is_file() else {}

        def tokenizer(name: str) -> Tokenizer:
            return _tokenizer_class(str(plugins.get(name, "")), f"{folder / PLUGINS}: {name}").load(folder / name)

        if SHARED in files:
            shared = tokenizer(SHARED)
            return cls(shared, shared)
        if not files & {SOURCE, READER} or not files & {TARGET, LABELS}:
            raise ValueError(f"{folder} holds neither {SHARED} nor {SOURCE} and {TARGET}")
        return cls(
            tokenizer(SOURCE) if SOURCE in files else source_reader.load(folder),
            tokenizer(TARGET) if TARGET in files else LabelSet.load(folder / LABELS),
        )


def _tokenizer_class(name: str, key: str = "tokenizer.kind") -> type[Tokenizer]:
    """Our own for one of its kinds and for no name; else a plug-in."""
    return Tokenizer if name in ("", *get_args(Kind)) else load_plugin(name, "tokenizer", Tokenizer, key)
