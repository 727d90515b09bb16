"""Which rows of a corpus are held out to validate with."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool


def is_held_out(row: int, every: int) -> bool:
    """One row of each `every` rows, chosen by a hash: evenly over a sorted file, but not at regular intervals.

    Only the number of the row decides, so every process, resumed run and training seed holds out the same rows.
    """
    block, place = divmod(row, every)
    return _held_place(block, every) == place


def held_out_rows(first: int, count: int, every: int) -> Bool[np.ndarray, "count"]:
    """`is_held_out` of `count` rows from `first` on."""
    places = np.array([_held_place(block, every) for block in range(first // every, (first + count) // every + 1)])
    rows = np.arange(first, first + count)
    held: Bool[np.ndarray, "count"] = rows % every == places[rows // every - first // every]
    return held


def _held_place(block: int, every: int) -> int:
    drawn = blake2b(str(block).encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "little") % every
