"""Photographs with captions, from a folder laid out as the real one is, with captions of our own."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

import pytest

from regard.data.corpora import photos_and_spoken_digits as published

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "image\tsplit\tmulti30k_split\tmulti30k_row\tcap0\tcap1\tcap2\tcap3\tcap4\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "photos"
    made.mkdir()
    rows = [
        ("a.jpg", "train", "train", "1", "A first .", "b", "c", "d", 'He said " hello'),
        ("b.jpg", "dev", "", "", "e", "f", "g", "h", "i"),
        ("c.jpg", "test", "val", "0", "j", "k", "l", "m", "n"),
        ("d.jpg", "none", "train", "0", "o", "p", "q", "r", "s"),
    ]
    (made / published.TABLE).write_text(HEADER + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "multi30k").mkdir()
    for split, lines in (("train", "zero\tnull\tzéro\none\teins\tun\n"), ("val", "two\tzwei\tdeux\n")):
        with lzma.open(tmp_path / "multi30k" / f"{split}.lc.norm.tok.en-de-fr.tsv.xz", "wt", encoding="utf-8") as file:
            file.write(lines)
    return made


def test_five_captions_each_by_the_official_split(folder: Path) -> None:
    pairs = list(published.photo_captions(folder, "train"))
    assert {pair.source for pair in pairs} == {str(folder / published.PICTURES / "a.jpg")}
    assert [pair.target for pair in pairs] == ["a first .", "b", "c", "d", 'he said " hello']
    assert pairs[0].where.endswith("captions_1k.tsv:2")
    assert [pair.target for pair in published.photo_captions(folder, "valid")] == [
        "e",
        "f",
        "g",
        "h",
        "i",
    ]


def test_other_languages_are_of_the_same_pictures(folder: Path) -> None:
    assert [pair.target for pair in published.photo_captions(folder, "train", "de")] == ["eins"]
    assert [pair.target for pair in published.photo_captions(folder, "test", "fr")] == ["deux"]
    assert list(published.photo_captions(folder, "valid", "fr")) == []  # Multi30k does not have this one


def test_a_table_that_is_none_is_refused(folder: Path) -> None:
    (folder / published.TABLE).write_text("image\tcap0\na.jpg\tb\n", encoding="utf-8")
    with pytest.raises(ValueError, match="the header lacks cap1, cap2, cap3, cap4, split"):
        list(published.photo_captions(folder, "train"))
