"""The two sides of a corpus: a vocabulary or another reader for the source, a vocabulary or labels for the target."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from ..files import read_json, read_object, write_text
from ..plugins import load_plugin
from ..special_tokens import UNKNOWN
from .tokenizer import Kind, Tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from jaxtyping import Float64, Int

    from .rows import Pair

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


READER = "reader.json"  # how a source that is no text is read; beside the tokenizer of the target


class EmptyReader:
    """The source of a language model: each is a single, unused </s>.

    What reads sources has these attributes. `shape` is that of every source where all have the same (pictures); without
    it a source is a row of numbers of any length, `stride` of which count as one token of a batch. A source that cannot
    be read is a ValueError that names it.
    """

    kind: ClassVar[str] = "none"
    dtype: ClassVar[str] = "<i4"  # of the numbers, as numpy names it
    stride = 1
    shape = None

    def encode_batch(self, sources: Sequence[str]) -> list[list[int]]:
        return [[] for _ in sources]

    def to_dict(self) -> dict[str, Any]:
        """Its settings, for reader.json."""
        return {}


def save_reader(reader: Any, folder: Path) -> None:
    """reader.json, from which `load_reader` makes the same reader."""
    write_text(folder / READER, json.dumps({"kind": reader.kind, **reader.to_dict()}, indent=2) + "\n")


def load_reader(folder: Path) -> Any:
    values = read_object(folder / READER)
    values.pop("typical", None)  # statistics of the training pictures, which earlier versions wrote
    try:
        return make_reader(**{"kind": None, **values})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / READER}: {error}") from None


def make_reader(kind: object, **settings: Any) -> Any:
    """The reader of a kind: "none", "picture" or "sound". What these need is imported only here."""
    if kind == "none":
        return EmptyReader(**settings)
    if kind == "picture":
        from .media import PictureReader

        return PictureReader(**settings)
    if kind == "sound":
        from .media import SoundReader

        return SoundReader(**settings)
    raise ValueError(f"no reader is of kind {kind!r:.40}; known kinds are none, picture, sound")


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

    source: Any  # a Tokenizer, or another reader (make_reader)
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
                save_reader(part, folder)
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
            tokenizer(SOURCE) if SOURCE in files else load_reader(folder),
            tokenizer(TARGET) if TARGET in files else LabelSet.load(folder / LABELS),
        )


def _tokenizer_class(name: str, key: str = "tokenizer.kind") -> type[Tokenizer]:
    """Our own for one of its kinds and for no name; else a plug-in."""
    return Tokenizer if name in ("", *get_args(Kind)) else load_plugin(name, "tokenizer", Tokenizer, key)


IdfFormula = Literal["smoothed", "plain"]

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def inverse_document_frequency(
    texts_with_token: Int[np.ndarray, "tokens"], texts: int, formula: IdfFormula
) -> Float64[np.ndarray, "tokens"]:
    """`texts_with_token` is n_j, the number of texts with token j, and `texts` is N.

    plain: log(N / n_j), which is 0 for a token of every text; one of no text counts as one of a single text.
    smoothed: log((1 + N) / (1 + n_j)) + 1, as in scikit-learn, which is never 0 and defined for n_j = 0.
    """
    if formula == "plain":
        return np.asarray(np.log(max(texts, 1) / np.maximum(texts_with_token, 1)))
    return np.asarray(np.log((1 + texts) / (1 + texts_with_token)) + 1)


def document_counts(texts: Iterable[str]) -> Counter[str]:
    """The number of texts with each word, in lower case; a word is letters and digits, with apostrophes inside."""
    return Counter(word for text in texts for word in set(_WORD.findall(text.lower())))
