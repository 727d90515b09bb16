"""A corpus as ids: two flat arrays, in memory or in memory-mapped files."""

from __future__ import annotations

import io
import json
import shutil
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from .batch import BEGIN, END

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from jaxtyping import Int, Int32, Int64

    from .pair import Pair
    from .tokenizer import Tokenizers

_ARRAYS = {"source": "<i4", "target": "<i4", "source_lengths": "<i4", "target_lengths": "<i4", "rows": "<i8"}
_INDEX = "encoded.json"  # written last: where it is, the arrays are whole
_CHUNK = 8192  # pairs tokenised together


class Encoded:
    """All pairs, one after the other: source with </s> at its end, target with <s> before and </s> after.

    `rows` says which row of the corpus each pair was; `dropped` counts the pairs that had more than `longest` tokens on
    a side, </s> included. An `Encoded` in a folder is read through memory-mapped files and never held whole in memory.
    """

    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]], dropped: int, folder: Path | None = None) -> None:
        self.source: Int32[np.ndarray, "source_tokens"] = arrays["source"]
        self.target: Int32[np.ndarray, "target_tokens"] = arrays["target"]
        self.source_lengths: Int64[np.ndarray, "pairs"] = arrays["source_lengths"].astype(np.int64)
        self.target_lengths: Int64[np.ndarray, "pairs"] = arrays["target_lengths"].astype(np.int64)
        self.rows: Int64[np.ndarray, "pairs"] = arrays["rows"]
        self.source_starts = self.source_lengths.cumsum() - self.source_lengths
        self.target_starts = self.target_lengths.cumsum() - self.target_lengths
        self.dropped, self.folder = dropped, folder

    @classmethod
    def build(
        cls,
        pairs: Iterable[Pair],
        tokenizers: Tokenizers,
        *,
        longest: int | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> Encoded:
        """Tokenise a corpus as it streams by, into memory or into a new folder."""
        if folder is None:
            memory = {name: io.BytesIO() for name in _ARRAYS}
            dropped = _write(pairs, tokenizers, longest, memory)
            return cls({name: np.frombuffer(memory[name].getbuffer(), kind) for name, kind in _ARRAYS.items()}, dropped)
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"{folder} is there already; load it, or remove it to encode the corpus again")
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        files = {name: (unfinished / f"{name}.bin").open("wb") for name in _ARRAYS}
        try:
            dropped = _write(pairs, tokenizers, longest, files)
        finally:
            for file in files.values():
                file.close()
        sizes = {name: (unfinished / f"{name}.bin").stat().st_size for name in _ARRAYS}
        (unfinished / _INDEX).write_text(json.dumps({"dropped": dropped, "sizes": sizes}), encoding="utf-8")
        unfinished.rename(folder)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Encoded:
        """What `build` left in a folder."""
        folder = Path(folder)
        try:
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(f"{folder} holds no encoded corpus ({_INDEX} is missing)") from error
        arrays = {}
        for name, kind in _ARRAYS.items():
            file, size = folder / f"{name}.bin", index["sizes"][name]
            if not file.exists() or file.stat().st_size != size:
                raise ValueError(f"{file} should have {size:,} bytes; remove {folder} and encode the corpus again")
            # numpy maps no empty file
            arrays[name] = np.memmap(file, kind, mode="r") if size else np.empty(0, kind)
        return cls(arrays, index["dropped"], folder)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process opens the same files instead of being sent what is in them.
        if self.folder is not None:
            return Encoded.load, (self.folder,)
        return Encoded, ({name: getattr(self, name) for name in _ARRAYS}, self.dropped)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Int[np.ndarray, "source"], Int[np.ndarray, "target"]]:
        """The ids of pair i, specials included."""
        i = range(len(self))[i]
        source, target = self.source_starts[i], self.target_starts[i]
        return (
            self.source[source : source + self.source_lengths[i]],
            self.target[target : target + self.target_lengths[i]],
        )


def _write(pairs: Iterable[Pair], tokenizers: Tokenizers, longest: int | None, files: dict[str, Any]) -> int:
    """Append every pair to the files; the number of pairs that were too long."""
    stream, dropped = iter(pairs), 0
    while chunk := list(islice(stream, _CHUNK)):
        sources = [[*ids, END] for ids in tokenizers.source.encode_batch([pair.source for pair in chunk])]
        targets = [[BEGIN, *ids, END] for ids in tokenizers.target.encode_batch([pair.target for pair in chunk])]
        kept = [i for i in range(len(chunk)) if longest is None or max(len(sources[i]), len(targets[i]) - 1) <= longest]
        dropped += len(chunk) - len(kept)
        _append(files["source"], "<i4", chain.from_iterable(sources[i] for i in kept))
        _append(files["target"], "<i4", chain.from_iterable(targets[i] for i in kept))
        _append(files["source_lengths"], "<i4", (len(sources[i]) for i in kept))
        _append(files["target_lengths"], "<i4", (len(targets[i]) for i in kept))
        _append(files["rows"], "<i8", (chunk[i].row for i in kept))
    return dropped


def _append(file: IO[bytes], kind: str, values: Iterable[int]) -> None:
    file.write(np.fromiter(values, kind).tobytes())
