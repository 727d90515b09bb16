"""Photographs with captions: 991 of Flickr8k's, and for most of them Multi30k's sentences in German and French."""

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

TABLE, PICTURES = "captions_1k.tsv", "images_s128.zip"
_SPLITS = {"train": "train", "valid": "dev", "test": "test"}
_CAPTIONS = [f"cap{number}" for number in range(5)]
_COLUMNS = {"en": 0, "de": 1, "fr": 2}  # of Multi30k's files


def pairs(folder: Path, split: Split, language: Language = "en") -> Iterator[Pair]:
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
            if row["split"] != _SPLITS[split]:
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
