"""Rows of a corpus that are encoded together, and their encoding with NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..batch import BEGIN, END
from ..label_set import LabelSet, UnknownLabelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jaxtyping import Bool, Int32, Int64

    from ..pair import Pair
    from ..tokenizer_pair import TokenizerPair

CHUNK = 8192


@dataclass(frozen=True)
class RowChunk:
    """Sources and targets, the row of the corpus that each pair is, and `place(i)`, the file and line of pair i."""

    sources: Sequence[str]
    targets: Sequence[str]
    rows: Sequence[int] | Int64[np.ndarray, "rows"]
    place: Callable[[int], str]

    def select(self, indices: Sequence[int]) -> RowChunk:
        rows = np.asarray(self.rows, np.int64)[np.asarray(indices, np.int64)]
        sources, targets = ([side[i] for i in indices] for side in (self.sources, self.targets))
        return RowChunk(sources, targets, rows, lambda i: self.place(indices[i]))


def row_chunks(pairs: Iterable[Pair], size: int = CHUNK) -> Iterator[RowChunk]:
    """Pairs, several at a time."""
    stream = iter(pairs)
    while chunk := list(islice(stream, size)):
        yield RowChunk(
            [pair.source for pair in chunk],
            [pair.target for pair in chunk],
            [pair.row for pair in chunk],
            lambda i, chunk=chunk: chunk[i].where or f"pair {chunk[i].row + 1}",  # type: ignore[misc]
        )


def known_targets(chunk: RowChunk, target: Any, bad: list[str], on_bad: Literal["error", "skip"]) -> RowChunk:
    """The rows whose target can be written; of labels, only those there are."""
    if not isinstance(target, LabelSet):
        return chunk
    known = []
    for i, label in enumerate(chunk.targets):
        try:
            target.encode_batch([label])
        except UnknownLabelError as error:
            message = f"{chunk.place(i)}: {error}"
            if on_bad == "error":
                raise UnknownLabelError(message) from None
            bad.append(message)
        else:
            known.append(i)
    return chunk if len(known) == len(chunk.targets) else chunk.select(known)


def encode_chunk(chunk: RowChunk, tokenizers: TokenizerPair, longest: int | None) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the pairs that have no more than `longest` tokens on a side; `source_starts` from 0.

    For sources that are text, or nothing.
    """
    source, source_lengths = tokenizers.source.encode_flat(chunk.sources)
    target, target_lengths = tokenizers.target.encode_flat(chunk.targets)
    # What the encoder reads ends in </s>, and what the decoder predicts too.
    kept = np.ones(len(source_lengths), bool)
    if longest is not None:
        kept = np.maximum(source_lengths, target_lengths) + 1 <= longest
    if not kept.all():
        source, target = source[np.repeat(kept, source_lengths)], target[np.repeat(kept, target_lengths)]
        source_lengths, target_lengths = source_lengths[kept], target_lengths[kept]
    lengths = source_lengths + 1
    return {
        "source": framed(source, source_lengths, []),
        "target": framed(target, target_lengths, [BEGIN]),
        "source_starts": lengths.cumsum() - lengths,
        "source_lengths": lengths,
        "target_lengths": target_lengths + 2,
        "rows": np.asarray(chunk.rows, np.int64)[kept],
    }


def framed(
    ids: Int32[np.ndarray, "tokens"], lengths: Int64[np.ndarray, "texts"], before: list[int]
) -> Int32[np.ndarray, "all_tokens"]:
    """Each text with these tokens before it and </s> after it."""
    extra = len(before) + 1
    ends = (lengths + extra).cumsum()
    framed = np.empty(len(ids) + extra * len(lengths), np.int32)
    inside: Bool[np.ndarray, "all_tokens"] = np.ones(len(framed), bool)
    framed[ends - 1], inside[ends - 1] = END, False
    for place, token in enumerate(before):
        starts = ends - lengths - extra + place
        framed[starts], inside[starts] = token, False
    framed[inside] = ids
    return framed
