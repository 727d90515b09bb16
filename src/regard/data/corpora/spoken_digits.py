"""The Free Spoken Digit Dataset (Jackson et al., CC BY-SA 4.0): ten digits, six speakers, fifty times each."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Literal

from ..rows import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
INDEX, SOUND = "index.tsv", "fsdd_all_8k_mono16.flac"
_VALID = range(5, 10)  # recordings of each speaker and digit; 0 to 4 are the official test set


def pairs(folder: Path, split: Literal["train", "valid", "test"], left_out: str = "") -> Iterator[Pair]:
    """Intervals of the sound file, and the words spoken in them.

    The official split tests on recordings 0 to 4 of each speaker and digit; of the rest, 5 to 9 validate. With a
    speaker `left_out`, everything of that speaker's is the test and nothing of it is seen before.
    """
    with (folder / INDEX).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    speakers = sorted({row["speaker"] for row in rows})
    if left_out and left_out not in speakers:
        raise ValueError(f"data.left_out is {left_out!r}; the speakers are {', '.join(speakers)}")
    for number, row in enumerate(rows):
        tests = row["speaker"] == left_out if left_out else row["split"] == "test"
        part = "test" if tests else "valid" if int(row["index"]) in _VALID else "train"
        if part == split:
            stretch = f"{folder / SOUND}#{row['start']}:{row['length']}"
            yield Pair(stretch, WORDS[int(row["digit"])], number, f"{folder / INDEX}:{number + 2}")
