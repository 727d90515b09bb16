"""A shard: one block of a corpus, encoded, in one file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...atomic_write import replacing_file

if TYPE_CHECKING:
    from pathlib import Path

    from ..encoded_corpus import EncodedCorpus

HEADER = 8  # bytes that hold the size of the header
LARGEST = 1 << 28  # bytes of a header; it may hold sentences to validate with


@dataclass
class ShardInfo:
    """What is known of a block besides its arrays."""

    rows: int  # pairs of the block, also those that are not of this split
    dropped: int = 0  # of the split, for their length
    unreadable: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)  # rows that are no pairs, by kind
    first: dict[str, str] = field(default_factory=dict)
    pairs: list[list[Any]] = field(default_factory=list)  # [row of the block, source, target], where they are kept


class DamagedShardError(ValueError):
    """A file is no whole shard."""


def write_shard(path: Path, encoded: EncodedCorpus, info: ShardInfo) -> None:
    """The size of a header, the header as JSON, then the arrays as raw bytes."""
    arrays = encoded.arrays()
    sizes = {name: [array.dtype.str, len(array)] for name, array in arrays.items()}
    header = json.dumps({"arrays": sizes, "info": asdict(info)}).encode()
    with replacing_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(len(header).to_bytes(HEADER, "little") + header)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)


def read_shard_info(path: Path) -> ShardInfo:
    """The header alone; a DamagedShardError where the file has not the size that it states."""
    info, _, _ = _read_header(path)
    return info


def read_shard(path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], ShardInfo]:
    info, sizes, begin = _read_header(path)
    content, arrays = path.read_bytes(), {}
    for name, (kind, count) in sizes.items():
        arrays[name] = np.frombuffer(content, kind, count, begin)
        begin += arrays[name].nbytes
    return arrays, info


def _read_header(path: Path) -> tuple[ShardInfo, dict[str, tuple[str, int]], int]:
    from ..encoded_corpus import ARRAYS

    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(HEADER), "little")
            if size > LARGEST:
                raise ValueError(f"a header of {size:,} bytes")
            header = json.loads(file.read(size))
        sizes = {name: (str(header["arrays"][name][0]), int(header["arrays"][name][1])) for name in ARRAYS}
        if any(kind != ARRAYS[name] for name, (kind, _) in sizes.items()):
            raise ValueError("other arrays")
        info = ShardInfo(**header["info"])
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedShardError(f"{path} is no shard: {type(error).__name__}: {error}") from None
    stated = HEADER + size + sum(np.dtype(kind).itemsize * count for kind, count in sizes.values())
    if path.stat().st_size != stated:
        raise DamagedShardError(f"{path} should have {stated:,} bytes")
    return info, sizes, HEADER + size
