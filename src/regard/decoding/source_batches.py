"""Batches of sources for decoding: texts, or files of pictures and sounds, as arrays of similar length."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.batch import END, PAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    Source = list[int] | np.ndarray[Any, Any]
    """Ids that end in </s>; or samples of a sound, or a picture's pixels."""

LONGEST = 2048  # tokens of a sentence; longer ones are refused
PICTURE = 64  # tokens that a picture counts for


def stacked(sources: list[Source]) -> tuple[Tensor, Tensor]:
    """Sources as one tensor, padded with <pad> or silence, and their lengths; pictures have one shape already."""
    if isinstance(sources[0], np.ndarray) and sources[0].ndim > 1:
        return torch.from_numpy(np.stack(sources)), torch.full((len(sources),), sources[0].size)
    lengths = torch.tensor([len(source) for source in sources])
    flat = torch.from_numpy(np.concatenate([np.asarray(source) for source in sources]))
    padded = torch.full((len(sources), int(lengths.max())), PAD, dtype=flat.dtype)
    padded[torch.arange(padded.shape[1]) < lengths[:, None]] = flat
    return padded, lengths


def read(reader: Any, texts: list[str]) -> tuple[list[Source | None], dict[int, str]]:
    """Each source as numbers, None for one that is empty or cannot be read; and why it cannot."""
    sources: list[Source | None] = [None] * len(texts)
    if reader.kind != "text":
        reasons = {}
        for i, name in enumerate(texts):
            try:
                sources[i] = reader.encode_batch([name])[0]
            except ValueError as error:
                reasons[i] = str(error)
        return sources, reasons
    reasons = {i: why for i, text in enumerate(texts) if (why := no_text(text))}
    readable = ["" if i in reasons else text for i, text in enumerate(texts)]
    for i, ids in enumerate(reader.encode_batch(readable)):
        if len(ids) >= LONGEST:
            reasons[i] = f"has {len(ids) + 1:,} tokens; at most {LONGEST:,} fit: split it"
        elif readable[i].strip() and ids:
            sources[i] = [*ids, END]
    return sources, reasons


def windows(
    reader: Any,
    texts: Iterable[str],
    window: int,
    refused: Callable[[int, str], None] | None,
    *,
    noun: str,
    empty: str = "",
) -> Iterator[tuple[list[str], list[Source | None]]]:
    """The sources, `window` of them at a time, as they are and as numbers.

    One that cannot be read is an error, or is passed to `refused` by its number (from 1) with the reason. So is an
    empty one, where `empty` is a reason.
    """
    texts, before = iter(texts), 0
    while names := list(islice(texts, window)):
        sources, reasons = read(reader, names)
        if empty:
            reasons = {**{i: empty for i, source in enumerate(sources) if source is None}, **reasons}
        for i, why in sorted(reasons.items()):
            if refused is None:
                raise ValueError(why if reader.kind != "text" else f"{noun} {before + i + 1} {why}")
            refused(before + i + 1, why)
        before += len(names)
        yield names, sources


def no_text(text: str) -> str | None:
    """Why this is not text: on a command line, bytes that are not UTF-8 become lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"is not UTF-8: character {error.start + 1} is {text[error.start]!r}"
    return None


def batches(sources: list[Source | None], tokens: int, reader: Any) -> list[list[int]]:
    """Batches of like length, of at most so many padded tokens (or one sentence); the first in order come first."""
    widths = {
        i: PICTURE if reader.shape else -(-len(source) // reader.stride)
        for i, source in enumerate(sources)
        if source is not None
    }
    batches: list[list[int]] = []
    for i in sorted(widths, key=widths.__getitem__):  # the longest of a batch is its last
        if batches and widths[i] * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return sorted(batches, key=min)
