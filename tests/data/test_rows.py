"""Pairs from files: every format, and every way a row can be bad."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.data import Pair, PairReader
from regard.data.rows import LONGEST, RowProblem, header_remark, lines

ENGLISH = ["the cat sleeps", "a red car", "thank you"]
FRENCH = ["le chat dort", "une voiture rouge", "merci"]


def sides(pairs: PairReader) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


WANTED = list(zip(ENGLISH, FRENCH, strict=True))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_tsv_by_number_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"pairs.tsv{suffix}"
    data = "".join(f"{i}\t{en}\t{fr}\n" for i, (en, fr) in enumerate(WANTED)).encode()
    file.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](data))
    pairs = PairReader(file, columns=(1, 2))
    assert sides(pairs) == WANTED
    assert sides(pairs) == WANTED, "a second reading gives the same"
    assert [(pair.row, pair.where) for pair in pairs] == [(i, f"{file}:{i + 1}") for i in range(3)]


def test_tsv_by_header_name(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("fr\tid\ten\n" + "".join(f"{fr}\t7\t{en}\n" for en, fr in WANTED), encoding="utf-8")
    pairs = PairReader(file, columns=("en", "fr"))
    assert sides(pairs) == WANTED
    assert next(iter(pairs)).where == f"{file}:2"
    with pytest.raises(ValueError, match=r"pairs.tsv:1: the header has no column 'de'; it has fr, id, en"):
        list(PairReader(file, columns=("en", "de")))
    (tmp_path / "empty.tsv").touch()
    assert sides(PairReader(tmp_path / "empty.tsv", columns=("en", "fr"))) == []
    with pytest.raises(ValueError, match="all numbers or all names"):
        list(PairReader(file, columns=("en", 0)))
    with pytest.raises(ValueError, match="counted from 0"):
        list(PairReader(file, columns=(0, -1)))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_csv_with_quotes_commas_and_breaks(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"pairs.csv{suffix}"
    data = '\ufeffid,text,label\r\n1,"a, b",x\r\n2,"she said ""yes""\r\nand left","y"\r\n3,it\'s 5" wide,z'.encode()
    file.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](data))
    pairs = PairReader(file, columns=("text", "label"))
    assert sides(pairs) == [("a, b", "x"), ('she said "yes"\nand left', "y"), ("it's 5\" wide", "z")]
    assert sides(pairs) == sides(pairs), "a second reading gives the same"
    assert [pair.where for pair in pairs] == [f"{file}:{n}" for n in (2, 3, 5)], "the line a row begins in"
    assert sides(PairReader(file, columns=(1, 2))) == [("text", "label"), *sides(pairs)]
    with pytest.raises(ValueError, match="the header has no column 'texts'; it has id, text, label"):
        list(PairReader(file, columns=("texts", "label")))


def test_a_quote_that_is_never_closed_is_reported_where_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text('a,b\nc,"d\ne,f\ng,h\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"pairs\.csv:2: the row is not CSV: .* \(a quote that opens must close"):
        list(PairReader(file))
    pairs = PairReader(file, on_bad="skip")
    assert sides(pairs) == [("a", "b")]
    assert pairs.reasons == {"not CSV": 1}
    monkeypatch.setattr("regard.data.rows.LONGEST", 12)  # a row over many lines fills no memory either
    file.write_text('a,b\nc,"d\n' + "e,f\n" * 20, encoding="utf-8")
    with pytest.raises(ValueError, match=r"pairs\.csv:2: the row is not CSV: it has more than 12 characters"):
        list(PairReader(file))


def test_a_bad_line_within_quotes_spoils_its_own_row(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_bytes(b'a,b\n"c\ncaf\xe9",d\ne,f\n')
    pairs = PairReader(file, on_bad="skip")
    assert sides(pairs) == [("a", "b"), ("e", "f")]
    assert pairs.first == {"undecodable bytes": f"{file}:3: byte 4 of the line, 0xe9, is not UTF-8"}


def test_line_ends_and_marks_of_other_systems(tmp_path: Path) -> None:
    """A byte-order mark and \\r\\n are not text; U+2028 is, and ends no line."""
    file = tmp_path / "pairs.tsv"
    file.write_bytes("\ufeffthe\u2028cat\tle chat\r\na dog\tun chien".encode())
    assert sides(PairReader(file)) == [("the\u2028cat", "le chat"), ("a dog", "un chien")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_too_long_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr("regard.data.rows.LONGEST", 4)
    file = tmp_path / "text"
    for length in range(1, 12):
        file.write_bytes(b"x" * length + end + b"next" + end + b"x" * length)
        first, second, third = lines(file)
        assert second == "next"
        assert first == third
        assert first == "x" * length if length <= 4 else isinstance(first, RowProblem)


def test_two_line_aligned_files(tmp_path: Path) -> None:
    en, fr = tmp_path / "text.en", tmp_path / "text.fr.gz"
    en.write_text("\n".join(ENGLISH), encoding="utf-8")
    fr.write_bytes(gzip.compress("\n".join(FRENCH).encode()))
    assert sides(PairReader(en, target=fr)) == WANTED
    assert sides(PairReader([en, en], target=[fr, fr])) == WANTED * 2
    with pytest.raises(ValueError, match="one file for each source file"):
        PairReader([en, en], target=fr)
    with pytest.raises(ValueError, match="leave it out"):
        PairReader(en, target=fr, columns=(0, 1))


def test_jsonl_with_keys_within_keys(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl.xz"
    rows = [{"translation": {"en": en, "fr": fr}, "id.x": en} for en, fr in WANTED]
    file.write_bytes(lzma.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    assert sides(PairReader(file, columns=("translation.en", "translation.fr"))) == WANTED
    assert sides(PairReader(file, columns=("id.x", "translation.fr"))) == WANTED, "a dot may also be part of a key"
    with pytest.raises(ValueError, match="say the names of its columns"):
        list(PairReader(file))
    with pytest.raises(ValueError, match="say the names of its columns"):
        list(PairReader(file, columns=(0, 1)))


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "pairs.parquet"
    many = 5000  # more than one read
    table = arrow.table(
        {"other": list(range(many)), "en": ["one"] * many, "t": [{"fr": f"un {i}"} for i in range(many)]}
    )
    parquet.write_table(table, file)
    rows_read = list(PairReader(file, columns=("en", "t.fr")))
    assert [pair.target for pair in rows_read] == [f"un {i}" for i in range(many)]
    assert rows_read[-1].where == f"{file}:{many}"
    with pytest.raises(ValueError, match="has no column 'de'; it has other, en, t"):
        list(PairReader(file, columns=("en", "de")))
    parquet.write_table(arrow.table({"en": ["one", None, 3 * "x"], "n": [1, 2, 3]}), file)
    with pytest.raises(ValueError, match=r"parquet:1: column 'n' is 1, not text"):
        list(PairReader(file, columns=("en", "n")))
    skipped = PairReader(file, columns=("en", "en"), on_bad="skip")
    assert len(list(skipped)) == 2
    assert skipped.reasons == {"empty source": 1}
    raw = arrow.array([b"fine", b"caf\xe9"], arrow.binary()).view(arrow.string())
    parquet.write_table(arrow.table({"en": raw}), file)
    with pytest.raises(ValueError, match="parquet:2: the row is not UTF-8"):
        list(PairReader(file, columns=("en", "en")))
    file.write_bytes(b"not parquet at all")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        list(PairReader(file, columns=("en", "fr")))


@pytest.mark.parametrize("columns", [None, (0, 1), ("file", "label")])
def test_a_folder_of_sounds_is_no_dataset(tmp_path: Path, columns: tuple[int | str, ...] | None) -> None:
    """It is said as soon as it is named, and not as a question about columns."""
    (tmp_path / "wavs").mkdir()
    (tmp_path / "wavs" / "a.wav").touch()
    with pytest.raises(ValueError, match=r"wavs is a folder; .* a TSV: the name of a file, a tab, its"):
        PairReader(tmp_path / "wavs", columns=columns)


def test_an_empty_text_and_an_empty_label_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text,label\n,good\nfine,good\nno label,\n", encoding="utf-8")
    reader = PairReader(tmp_path / "x.csv", columns=("text", "label"), on_bad="skip")
    assert sides(reader) == [("fine", "good")]
    assert reader.report() == "2 rows skipped (1 empty source, 1 empty target)"
    wrong = [f"{tmp_path / 'x.csv'}:2: column 'text' is empty", f"{tmp_path / 'x.csv'}:4: column 'label' is empty"]
    assert list(reader.first.values()) == wrong


def test_several_files_are_one_corpus(tmp_path: Path) -> None:
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / name).write_text(f"{name}\tx\n", encoding="utf-8")
    listed = PairReader([tmp_path / "a.tsv", tmp_path / "b.tsv"])
    assert [(pair.source, pair.row) for pair in listed] == [("a.tsv", 0), ("b.tsv", 1)]
    generated = PairReader(tmp_path / name for name in ("a.tsv", "b.tsv"))
    assert sides(generated) == sides(generated) == sides(listed), "the files, unlike their names, can be read again"


def test_pairs_that_are_there_already() -> None:
    given = [Pair("a", "b"), Pair(" ", "c")]
    pairs = PairReader(given, on_bad="skip")
    assert sides(pairs) == sides(pairs) == [("a", "b")]
    assert pairs.first == {"empty source": "pair 2: the source side is empty"}
    assert sides(PairReader([])) == []
    once = PairReader(pair for pair in (given[0], given[0]))
    assert sides(once) == sides(once) == [("a", "b")] * 2


# name, content, file:line and reason, kind; the second line of each is bad, the others are not
BAD = [
    (
        "x.tsv",
        b"a\tb\nonly one\nc\td\n",
        r"x.tsv:2: the line has 1 column, and column 1 was asked for \(they.* tabs",
        "missing column",
    ),
    ("x.tsv", b"a\tb\nx\ty\tz\nc\td\n", r"x.tsv:2: the line has 3 columns, and line 1 has 2 \(tabs", "ragged row"),
    ("x.csv", b"a,b\nx,y,z\nc,d\n", r"x.csv:2: the line has 3 columns, and line 1 has 2 \(commas", "ragged row"),
    ("x.tsv", b"a\tb\n \tx\nc\td\n", r"x.tsv:2: column 0 is empty", "empty source"),
    ("x.tsv", b"a\tb\nx\t\nc\td\n", r"x.tsv:2: column 1 is empty", "empty target"),
    ("x.tsv", b"a\tb\n\nc\td\n", r"x.tsv:2: the line has 1 column,", "missing column"),
    ("x.tsv", b"a\tb\ncaf\xe9\tx\nc\td\n", r"x.tsv:2: byte 4 of the line, 0xe9, is not UTF-8", "undecodable bytes"),
    ("x.tsv", b"a\tb\n" + b"x" * (3 * LONGEST) + b"\nc\td\n", r"x.tsv:2: the line is longer than", "over-long line"),
    ("x.csv", b"a,b\nonly one\nc,d\n", r"x.csv:2: the line has 1 column, .* commas separate them", "missing column"),
    ("x.csv", b"a,b\n\nc,d\n", r"x.csv:2: the line has 0 columns", "missing column"),
    ("x.csv", b'a,b\n"caf\xe9",x\nc,d\n', r"x.csv:2: byte 5 of the line, 0xe9, is not UTF-8", "undecodable bytes"),
    ("x.csv", b'a,b\n"x"y,z\nc,d\n', r"x.csv:2: the row is not CSV: ',' expected", "not CSV"),
    ("x.csv", b"a,b\n" + b"x" * (3 * LONGEST) + b"\nc,d\n", r"x.csv:2: the line is longer than", "over-long line"),
    ("x.jsonl", b'["a","b"]\n', r"x.jsonl:1: the row has no '0'", "missing column"),
    ("x.jsonl", b'{"0":"a","1":"b"}\n{"0":\n{"0":"c","1":"d"}', r"x.jsonl:2: the line is not JSON", "not JSON"),
    ("x.jsonl", b'{"0":"a","1":"b"}\n' + b"[" * 99999 + b'\n{"0":"c","1":"d"}', r"x.jsonl:2: the line", "not JSON"),
    ("x.jsonl", b'{"0":"a","1":"b"}\n{"0":5,"1":"x"}\n{"0":"c","1":"d"}', r"x.jsonl:2: .* is 5, not text", "not text"),
    ("x.jsonl", b'{"0":"a","1":"b"}\n{"0":"\\ud800","1":"x"}\n{"0":"c","1":"d"}', "surrogate", "undecodable bytes"),
]


@pytest.mark.parametrize(("name", "content", "message", "kind"), BAD, ids=[f"{row[3]} {row[0]}" for row in BAD])
def test_a_bad_row_is_an_error_or_skipped_and_counted(
    tmp_path: Path, name: str, content: bytes, message: str, kind: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    columns = ("0", "1") if name.endswith("jsonl") else (0, 1)
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))}.*{message}") as raised:
        list(PairReader(file, columns=columns))
    assert raised.value.__notes__ == ["on_bad='skip' leaves such rows out"]
    pairs = PairReader(file, columns=columns, on_bad="skip")
    rows_read = list(pairs)
    assert [pair.row for pair in rows_read] == ([0, 2] if content.count(b"\n") > 1 else [])
    assert pairs.skipped == 1
    assert pairs.reasons == {kind: 1}
    assert re.search(message, pairs.first[kind])
    assert pairs.report() == f"1 row skipped (1 {kind})"


def test_files_of_different_lengths(tmp_path: Path) -> None:
    en, fr = tmp_path / "text.en", tmp_path / "text.fr"
    en.write_text("a\nb\nc\nd\n", encoding="utf-8")
    fr.write_text("x\n\n", encoding="utf-8")
    pairs = PairReader(en, target=fr, on_bad="skip")
    assert sides(pairs) == [("a", "x")]
    assert pairs.reasons == {"differing line counts": 2, "empty target": 1}
    assert pairs.first["empty target"] == f"{fr}:2: the target side is empty", "the file to mend is named"
    with pytest.raises(ValueError, match=r"text.en:3: .*text.fr ends after 2 lines, .*text.en does not"):
        list(PairReader([en], target=[_lines(tmp_path, "x\ny\n")]))


def _lines(folder: Path, text: str) -> Path:
    file = folder / "text.fr"
    file.write_text(text, encoding="utf-8")
    return file


def test_gold_links(tmp_path: Path) -> None:
    file = tmp_path / "gold.tsv"
    file.write_text("a cat\tun chat\t0-0 1-1\t0-1\na cat\tun chat\t\t\n", encoding="utf-8")
    assert [(pair.alignment, pair.possible) for pair in PairReader(file, columns=(0, 1, 2, 3))] == [
        ("0-0 1-1", "0-1"),
        ("", ""),
    ]
    assert next(iter(PairReader(file))).alignment is None
    file.write_text("a cat\tun chat\t0-0 1-2\t\n", encoding="utf-8")
    with pytest.raises(ValueError, match="link 1-2 points past the end: the sides have 2 words and 2 words"):
        list(PairReader(file, columns=(0, 1, 2)))
    file.write_text("a cat\tun chat\t0:0\t\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'0:0' is no link"):
        list(PairReader(file, columns=(0, 1, 2)))


def test_damaged_archives_say_where(tmp_path: Path) -> None:
    text = "".join(f"sentence {i}\tphrase {i}\n" for i in range(20000)).encode()
    for name, packed in (("x.tsv.gz", gzip.compress(text)), ("x.tsv.xz", lzma.compress(text))):
        file = tmp_path / name
        file.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(ValueError, match=rf"{name}:\d+: the file is damaged from here on"):
            list(PairReader(file, on_bad="skip"))
        file.write_bytes(b"this is not an archive")
        with pytest.raises(ValueError, match=rf"{name}:1: the file is damaged from here on"):
            list(PairReader(file))


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        PairReader(tmp_path / "nowhere.tsv")
    file = tmp_path / "pairs.doc"
    file.touch()
    with pytest.raises(ValueError, match=r"pairs.doc: no reader knows this kind of file; known are .tsv, .txt, .csv"):
        PairReader(file)
    with pytest.raises(ValueError, match=r"got \('a', 'b'\)"):
        PairReader([("a", "b")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="'ignore'"):
        PairReader(file, on_bad="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="columns are those of"):
        PairReader(file, columns=(0,))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_a_corpus_larger_than_memory_streams_through(tmp_path: Path) -> None:
    """80 MB of text in a small archive; reading it takes a few MB."""
    file = tmp_path / "big.tsv.gz"
    line = ("word " * 200 + "\t" + "mot " * 250 + "\n").encode()
    with gzip.open(file, "wb", compresslevel=1) as packed:
        for _ in range(40):
            packed.write(line * 1000)
    code = f"""
from regard.data import PairReader
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
before = peak()
print(sum(1 for _ in PairReader({str(file)!r})), peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    count, grown = done.stdout.split()
    assert int(count) == 40_000
    assert float(grown) < 10


@pytest.mark.parametrize(
    ("sides", "where", "columns", "names", "noticed"),
    [
        (("source", "target"), "a.csv:1", (0, 1), (), True),
        (("Text", "Label"), "a.csv:1", (1, 0), (), True),
        (("kurdish", "zaza"), "a.csv:1", (0, 1), ("Kurdish", "zaza"), True),
        (("kurdish", "zaza"), "a.csv:1", (0, 1), (), False),
        (("source", "une source"), "a.csv:1", (0, 1), (), False),
        (("source", "target"), "a.csv:2", (0, 1), (), False),
        (("source", "target"), "a.csv:1", ("x", "y"), (), False),
    ],
)
def test_header(sides: tuple[str, str], where: str, columns: Any, names: tuple[str, ...], noticed: bool) -> None:
    remark = header_remark(Pair(*sides, 0, where), columns, "--columns {},{}", names)
    assert (remark is not None) == noticed
    if remark is not None:
        assert remark.startswith(f"a.csv:1 looks like a header ({sides[0]!r}, {sides[1]!r})")
        assert remark.endswith(f"--columns {sides[0]},{sides[1]}")
