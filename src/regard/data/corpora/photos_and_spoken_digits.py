"""Published corpora in files: photographs with captions, and spoken digits."""

from __future__ import annotations

import csv
import lzma
from functools import cache
from typing import TYPE_CHECKING, Literal

from ..rows import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Split = Literal["train", "valid", "test"]
    Language = Literal["en", "de", "fr"]

# Photographs with captions: 991 of Flickr8k's, and for most of them Multi30k's sentences in German and French.
TABLE, PICTURES = "captions_1k.tsv", "images_s128.zip"
_FLICKR_SPLITS = {"train": "train", "valid": "dev", "test": "test"}
_CAPTIONS = [f"cap{number}" for number in range(5)]
_COLUMNS = {"en": 0, "de": 1, "fr": 2}  # of Multi30k's files


def photo_captions(folder: Path, split: Split, language: Language = "en") -> Iterator[Pair]:
    """Paths into the archive of pictures, and captions, lowercased: five of a picture in English.

    In German and French there is one, from the folder multi30k beside this one, of the pictures that Multi30k has
    too. Some of these are in another split there; the split is always Flickr8k's.
    """
    table = folder / TABLE
    with table.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        missing = {"image", "split", *_CAPTIONS} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"{table}: the header lacks {', '.join(sorted(missing))}")
        for row in rows:
            if row["split"] != _FLICKR_SPLITS[split]:
                continue
            captions = [row[name] for name in _CAPTIONS]
            if language != "en":
                part, number = row["multi30k_split"], row["multi30k_row"]
                captions = [_multi30k(folder.parent / "multi30k", part, language)[int(number)]] if part else []
            where = f"{table}:{rows.line_num}"
            for caption in captions:
                yield Pair(str(folder / PICTURES / row["image"]), caption.strip().lower(), -1, where)


@cache
def _multi30k(folder: Path, split: str, language: Language) -> list[str]:
    """The sentences of a split in one language."""
    with lzma.open(folder / f"{split}.lc.norm.tok.en-de-fr.tsv.xz", "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n").split("\t")[_COLUMNS[language]] for line in file]


# The Free Spoken Digit Dataset (Jackson et al., CC BY-SA 4.0): ten digits, six speakers, fifty times each.
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
INDEX, SOUND = "index.tsv", "fsdd_all_8k_mono16.flac"
_VALID = range(5, 10)  # recordings of each speaker and digit; 0 to 4 are the official test set


def spoken_digits(folder: Path, split: Split, left_out: str = "") -> Iterator[Pair]:
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
