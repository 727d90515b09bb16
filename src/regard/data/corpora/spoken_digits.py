"""The Free Spoken Digit Dataset (Jackson et al., CC BY-SA 4.0): ten digits, six speakers, fifty times each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..rows import Pair, RowProblem, tsv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
INDEX, SOUND = "index.tsv", "fsdd_all_8k_mono16.flac"
_COLUMNS = ("digit", "speaker", "index", "split", "start", "length")
_VALID = range(5, 10)  # recordings of each speaker and digit; 0 to 4 are the official test set


def pairs(folder: Path, split: Literal["train", "valid", "test"], left_out: str = "") -> Iterator[Pair]:
    """Intervals of the sound file, and the words spoken in them.

    The official split tests on recordings 0 to 4 of each speaker and digit; of the rest, 5 to 9 validate. With a
    speaker `left_out`, everything of that speaker's is the test and nothing of it is seen before.
    """
    rows = []
    for where, cells in tsv(folder / INDEX, _COLUMNS):
        if isinstance(cells, RowProblem):
            raise ValueError(f"{where}: {cells.reason}")
        rows.append((where, *cells))
    speakers = sorted({row[2] for row in rows})
    if left_out and left_out not in speakers:
        raise ValueError(f"data.left_out is {left_out!r}; the speakers are {', '.join(speakers)}")
    for number, (where, digit, speaker, index, official, start, length) in enumerate(rows):
        if left_out:
            part = "test" if speaker == left_out else "valid" if int(index) in _VALID else "train"
        else:
            part = "test" if official == "test" else "valid" if int(index) in _VALID else "train"
        if part == split:
            yield Pair(f"{folder / SOUND}#{start}:{length}", WORDS[int(digit)], number, where)
