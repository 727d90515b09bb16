"""What reads the source side of a pair: words, a picture, a sound, or nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..atomic_write import write_text
from ..json_file import read_object

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


READER = "reader.json"  # how a source that is no text is read; beside the tokenizer of the target


class SourceReader(Protocol):
    """A source as numbers. `Tokenizer` is one, for text; the others have settings, which `to_dict` gives.

    `shape` is that of every source where all have the same (pictures); without it a source is a row of numbers of any
    length, `stride` of which count as one token of a batch.
    """

    kind: ClassVar[str]
    dtype: ClassVar[str]  # of the numbers, as numpy names it
    stride: int

    @property
    def shape(self) -> tuple[int, ...] | None: ...

    def encode_batch(self, sources: Sequence[str]) -> Sequence[Any]:
        """The numbers of each; a source that cannot be read is a ValueError that names it."""


class EmptyReader:
    """The source of a language model: each is a single, unused </s>."""

    kind: ClassVar[str] = "none"
    dtype: ClassVar[str] = "<i4"
    stride = 1
    shape = None

    def encode_batch(self, sources: Sequence[str]) -> list[list[int]]:
        return [[] for _ in sources]

    def to_dict(self) -> dict[str, Any]:
        return {}


def save(reader: Any, folder: Path) -> None:
    """reader.json, from which `load` makes the same reader."""
    write_text(folder / READER, json.dumps({"kind": reader.kind, **reader.to_dict()}, indent=2) + "\n")


def load(folder: Path) -> Any:
    values = read_object(folder / READER)
    try:
        return make_reader(**{"kind": None, **values})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / READER}: {error}") from None


def make_reader(kind: object, **settings: Any) -> Any:
    """The reader of a kind: "none", "picture" or "sound". What these need is imported only here."""
    if kind == "none":
        return EmptyReader(**settings)
    if kind == "picture":
        from .picture_reader import PictureReader

        return PictureReader(**settings)
    if kind == "sound":
        from .sound_reader import SoundReader

        return SoundReader(**settings)
    raise ValueError(f"no reader is of kind {kind!r:.40}; known kinds are none, picture, sound")
