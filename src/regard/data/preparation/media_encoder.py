"""Encodes pairs of a picture or a sound and a text, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..batch import BEGIN
from .row_chunk import framed

if TYPE_CHECKING:
    from ..tokenizer_pair import TokenizerPair
    from .row_chunk import RowChunk


class MediaEncoder:
    """Reads sources with a reader; one that several pairs share is read and written once."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._written = 0  # numbers so far
        self._places: dict[str, tuple[int, int]] = {}  # where each source begins, and its size

    def encode_chunk(
        self, chunk: RowChunk, tokenizers: TokenizerPair, longest: int | None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of a chunk of one pair, or of none; empty where the pair is longer than `longest`."""
        none = np.empty(0, np.int64)
        empty = dict.fromkeys(("source", "target", "source_starts", "source_lengths", "target_lengths", "rows"), none)
        if not chunk.sources:
            return empty
        (name,), reader, values = chunk.sources, self.reader, none
        if name not in self._places:
            values = np.asarray(reader.encode_batch([name])[0], reader.dtype).reshape(-1)
        start, size = self._places.get(name, (self._written, len(values)))
        target, lengths = tokenizers.target.encode_flat(chunk.targets)
        width = max(0 if reader.shape else -(-size // reader.stride), int(lengths[0]) + 1)  # its </s> is predicted
        if longest is not None and width > longest:
            return empty
        self._places[name] = start, size
        self._written += len(values)
        return {
            "source": values,
            "target": framed(target, lengths, [BEGIN]),
            "source_starts": np.array([start]),
            "source_lengths": np.array([size]),
            "target_lengths": lengths + 2,
            "rows": np.asarray(chunk.rows, np.int64),
        }
