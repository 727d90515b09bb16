"""A corpus as ids: two flat arrays, in memory or in memory-mapped files."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..atomic_write import replacing_folder
from ..json_file import DamagedFileError, read_object
from ..noun_count import count_of
from .encoding import CHUNK, MediaEncoder, encode_chunk, known_targets, row_chunks
from .inverse_document_frequency import inverse_document_frequency

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from jaxtyping import Float32, Int, Int32, Int64, Shaped

    from .encoding import RowChunk
    from .inverse_document_frequency import IdfFormula
    from .pair import Pair
    from .tokenizer_pair import TokenizerPair

ARRAYS = {
    "source": "<i4",  # or what the reader of a source that is no text gives
    "target": "<i4",
    "source_starts": "<i8",
    "source_lengths": "<i4",
    "target_lengths": "<i4",
    "rows": "<i8",
}
_INDEX = "encoded.json"
DTYPES = ("<i4", "<i2", "|u1")
"""The numbers of sources: tokens, samples, pixels. Objects, which numpy would unpickle, are none of them."""
LARGEST = 1 << 28
"""The maximum size of the index, in bytes: it names every source that could not be read."""


@dataclass(frozen=True)
class CorpusInfo:
    """Metadata of the arrays; `shape` and `stride` are those of the source's reader."""

    dtype: str = "<i4"
    shape: tuple[int, ...] | None = None
    stride: int = 1
    dropped: int = 0  # pairs that had more than `longest` tokens on a side, </s> included
    unreadable: tuple[str, ...] = ()  # sources that could not be read, and why
    ends: tuple[int, ...] = ()  # the row after the last one of each corpus, where there are several


class EncodedCorpus:
    """All pairs, one after the other: source with </s> at its end, target with <s> before and </s> after.

    A source that is no text is what its reader gives (samples, pixels), without </s>; one that several pairs share is
    there once. `rows` says which row of the corpus each pair was. An `EncodedCorpus` in a folder is read through
    memory-mapped files and never held whole in memory.
    """

    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]], about: CorpusInfo, folder: Path | None = None) -> None:
        self.source: Shaped[np.ndarray, "source_tokens"] = arrays["source"]
        self.target: Int32[np.ndarray, "target_tokens"] = arrays["target"]
        self.source_lengths: Int64[np.ndarray, "pairs"] = arrays["source_lengths"].astype(np.int64)
        self.target_lengths: Int64[np.ndarray, "pairs"] = arrays["target_lengths"].astype(np.int64)
        self.rows: Int64[np.ndarray, "pairs"] = arrays["rows"]
        self.source_starts: Int64[np.ndarray, "pairs"] = arrays["source_starts"]
        self.target_starts = self.target_lengths.cumsum() - self.target_lengths
        self.about, self.folder = about, folder

    @property
    def widths(self) -> Int64[np.ndarray, "pairs"]:
        """What a pair takes of a batch: what the encoder reads or the decoder predicts, whichever is longer.

        Sources of one shape take the same room in every batch, and the target decides.
        """
        written: Int64[np.ndarray, "pairs"] = self.target_lengths - 1  # the target's <s> is never predicted
        if self.about.shape is None:
            written = np.maximum(-(-self.source_lengths // self.about.stride), written)
        return written

    @classmethod
    def build(
        cls,
        pairs: Iterable[Pair],
        tokenizers: TokenizerPair,
        *,
        longest: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        on_bad: Literal["error", "skip"] = "error",
    ) -> EncodedCorpus:
        """Tokenise a corpus as it streams by, into memory or into a new folder.

        A source that cannot be read is an error, or with on_bad="skip" left out and named in `about`.
        """
        chunks = row_chunks(pairs, CHUNK if tokenizers.source.kind in ("text", "none") else 1)
        return cls.build_chunks(chunks, tokenizers, longest=longest, folder=folder, on_bad=on_bad)

    @classmethod
    def build_chunks(
        cls,
        chunks: Iterable[RowChunk],
        tokenizers: TokenizerPair,
        *,
        longest: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        on_bad: Literal["error", "skip"] = "error",
    ) -> EncodedCorpus:
        """The same for rows that come several at a time; of pictures and sounds, one at a time."""
        if folder is None:
            memory = {name: io.BytesIO() for name in ARRAYS}
            about = _write(chunks, tokenizers, longest, memory, on_bad)
            kinds = {**ARRAYS, "source": about.dtype}
            return cls({name: np.frombuffer(memory[name].getbuffer(), kind) for name, kind in kinds.items()}, about)
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"{folder} exists; load it, or remove it to encode the corpus again")
        with replacing_folder(folder) as unfinished:
            with ExitStack() as opened:
                files = {name: opened.enter_context((unfinished / f"{name}.bin").open("wb")) for name in ARRAYS}
                about = _write(chunks, tokenizers, longest, files, on_bad)
            write_index(unfinished, about)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> EncodedCorpus:
        """The corpus that `build` wrote into a folder."""
        folder = Path(folder)
        if not (folder / _INDEX).is_file():
            raise ValueError(f"{folder} holds no encoded corpus ({_INDEX} is missing)")
        index = read_object(folder / _INDEX, again := f"remove {folder} and encode the corpus again", LARGEST)
        if "about" not in index:
            raise ValueError(f"{folder} was encoded by another version of regard; remove it and encode again")
        try:
            lists = {name: tuple(value) for name, value in index["about"].items() if isinstance(value, list)}
            about = CorpusInfo(**{**index["about"], **lists})
            sizes = {name: int(index["sizes"][name]) for name in ARRAYS}
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{folder / _INDEX} is damaged: {type(error).__name__}: {error}; {again}") from None
        if about.dtype not in DTYPES:
            raise DamagedFileError(f"{folder / _INDEX} is damaged: its numbers are {about.dtype!r:.40}; {again}")
        arrays = {}
        for name, kind in {**ARRAYS, "source": about.dtype}.items():
            file, size = folder / f"{name}.bin", sizes[name]
            if not file.exists() or file.stat().st_size != size or size % np.dtype(kind).itemsize:
                raise ValueError(f"{file} should have {size:,} bytes; {again}")
            # numpy maps no empty file
            arrays[name] = np.memmap(file, kind, mode="r") if size else np.empty(0, kind)
        return cls(arrays, about, folder)

    def repeats(self, weights: Sequence[int]) -> Int64[np.ndarray, "pairs"]:
        """The weight of the corpus that each pair belongs to."""
        if len(weights) != len(self.about.ends):
            raise ValueError(
                f"{count_of(len(weights), 'weight')} for {count_of(len(self.about.ends), 'corpus', 'corpora')}"
            )
        repeats: Int64[np.ndarray, "pairs"] = np.asarray(weights, np.int64)[
            np.searchsorted(self.about.ends, self.rows, side="right")
        ]
        return repeats

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """What `build` writes, by name."""
        kinds = {**ARRAYS, "source": self.about.dtype}
        return {name: getattr(self, name).astype(kind, copy=False) for name, kind in kinds.items()}

    def idf(self, vocabulary: int, formula: IdfFormula = "smoothed") -> Float32[np.ndarray, "vocabulary"]:
        """Inverse document frequency of each source token."""
        text = np.repeat(np.arange(len(self)), self.source_lengths)
        once = np.unique(text * vocabulary + self.source)  # each token of each text
        texts_with_token = np.bincount(once % vocabulary, minlength=vocabulary)
        return inverse_document_frequency(texts_with_token, len(self), formula).astype(np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process opens the same files instead of receiving their content.
        if self.folder is not None:
            return EncodedCorpus.load, (self.folder,)
        return EncodedCorpus, ({name: getattr(self, name) for name in ARRAYS}, self.about)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Shaped[np.ndarray, "source"], Int[np.ndarray, "target"]]:
        """The numbers of pair i, specials included."""
        i = range(len(self))[i]
        source, target = self.source_starts[i], self.target_starts[i]
        return (
            self.source[source : source + self.source_lengths[i]],
            self.target[target : target + self.target_lengths[i]],
        )


def write_index(folder: Path, about: CorpusInfo) -> None:
    """The index of a folder that has all arrays."""
    sizes = {name: (folder / f"{name}.bin").stat().st_size for name in ARRAYS}
    (folder / _INDEX).write_text(json.dumps({"about": asdict(about), "sizes": sizes}), encoding="utf-8")


def _write(
    chunks: Iterable[RowChunk],
    tokenizers: TokenizerPair,
    longest: int | None,
    files: dict[str, Any],
    on_bad: Literal["error", "skip"],
) -> CorpusInfo:
    """Append all rows to the files."""
    reader = tokenizers.source
    several = reader.kind in ("text", "none")  # pictures and sounds are read one by one
    encode = encode_chunk if several else MediaEncoder(reader).encode_chunk
    dropped = written = 0
    bad: list[str] = []
    for chunk in chunks:
        known = known_targets(chunk, tokenizers.target, bad, on_bad)
        try:
            arrays = encode(known, tokenizers, longest)
        except ValueError as error:
            if on_bad == "error" or several:
                raise
            bad.append(str(error))
            continue
        dropped += len(known.sources) - len(arrays["rows"])
        if several:
            arrays["source_starts"] += written
            written += len(arrays["source"])
        for name, kind in {**ARRAYS, "source": reader.dtype}.items():
            files[name].write(arrays[name].astype(kind, copy=False).tobytes())
    return CorpusInfo(reader.dtype, reader.shape, reader.stride, dropped, tuple(bad))
