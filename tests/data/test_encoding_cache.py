"""Corpora encoded in blocks: the same as row by row, by any number of processes, and from the cache."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from regard.data import EncodedCorpus, Pair, Tokenizer, TokenizerPair, encoding_cache
from regard.data import corpus_stream as corpus_blocks
from regard.data.corpus_stream import CorpusPart, SampledPairs, Split, is_held_out
from regard.data.encoding import ARRAYS
from regard.data.encoding_cache import PreparationCache, prepare_split, process_count
from regard.data.rows import BOM, BadRowError
from regard.files import CHECKSUMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("tokenizers")

WORDS = ["the", "cat", "sees", "a", "dog", "l'eau", "été", "aujourd'hui", "42", "no."]


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    source = random.Random(seed)
    sides = [[" ".join(source.choices(WORDS, k=source.randint(1, 9))) for _ in range(count)] for _ in range(2)]
    return list(zip(*sides, strict=True))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_blocks, "BLOCK_ROWS", 7)


@pytest.fixture
def tokenizers(tmp_path: Path) -> Path:
    pairs = [Pair(*each) for each in texts(60, 1)]
    folder = tmp_path / "tokenizers"
    folder.mkdir()
    TokenizerPair.train("bpe", 60, pairs).save(folder)
    return folder


def prepared(split: Split, tokenizers: Path, out: Path, cache: Path) -> tuple[EncodedCorpus, list[Any], list[int]]:
    blocks: list[int] = []
    reports = prepare_split(split, tokenizers, out, PreparationCache(cache), print, blocks.append)
    return EncodedCorpus.load(out), reports, blocks


def split_of(*parts: CorpusPart, **settings: Any) -> Split:
    return Split(parts, tuple(part.scan() for part in parts), **settings)


def row_by_row(parts: list[CorpusPart], tokenizers: Path, *, hold_out: int = 0, valid: bool = False) -> EncodedCorpus:
    """What `Corpus` and `EncodedCorpus.build` make of the same files."""
    pairs = [pair for part in parts for pair in part.reader]
    numbered = [Pair(pair.source, pair.target, row) for row, pair in enumerate(pairs)]
    if hold_out:
        numbered = [pair for pair in numbered if is_held_out(pair.row, hold_out) == valid]
    return EncodedCorpus.build(numbered, TokenizerPair.load(tokenizers), longest=14)


def assert_same(first: EncodedCorpus, second: EncodedCorpus) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    assert first.about.dropped == second.about.dropped


def write_tsv(path: Path, pairs: list[tuple[str, str]], *, opened: Any = open) -> Path:
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        file.writelines(f"{source}\t{target}\n" for source, target in pairs)
    return path


def formats(folder: Path) -> Iterator[tuple[str, CorpusPart]]:
    pairs = texts(40, 2)
    tsv = write_tsv(folder / "plain.tsv", pairs)
    yield "tsv", CorpusPart((str(tsv),), (1, 0))
    header = write_tsv(folder / "header.tsv.gz", [("en", "fr"), *pairs], opened=gzip.open)
    yield "header", CorpusPart((str(header),), ("fr", "en"))
    (folder / "only.tsv").write_bytes(BOM)
    yield "only a mark", CorpusPart((str(folder / "only.tsv"),), (0, 1))
    for i, side in enumerate(("en", "fr")):
        (folder / f"side.{side}").write_text("\n".join(pair[i] for pair in pairs), encoding="utf-8")
    yield "aligned", CorpusPart((str(folder / "side.en"), str(folder / "side.fr")))
    bad = [*pairs[:9], ("", "empty"), *pairs[9:20], ("one cell", ""), *pairs[20:]]
    yield "bad rows", CorpusPart((str(write_tsv(folder / "bad.tsv", bad)),), (0, 1), "skip")


@pytest.mark.parametrize("hold_out", [0, 3])
def test_every_format_gives_what_reading_row_by_row_gives(tmp_path: Path, tokenizers: Path, hold_out: int) -> None:
    for name, part in formats(tmp_path):
        more = CorpusPart((str(tmp_path / "plain.tsv"),), (0, 1))
        for valid in (False, True) if hold_out else (False,):
            settings = {"longest": 14, "hold_out": hold_out, "valid": valid, "keeps_pairs": valid}
            split = split_of(part, more, **settings)
            encoded, reports, _ = prepared(split, tokenizers, tmp_path / f"{name}-{valid}", tmp_path / "cache")
            wanted = row_by_row([part, more], tokenizers, hold_out=hold_out, valid=valid)
            assert_same(encoded, wanted)
            assert reports[0].reasons == part.reader.reasons, name
            assert reports[0].first == part.reader.first, name
            if valid:
                lines = (tmp_path / f"{name}-{valid}" / encoding_cache.PAIRS).read_text(encoding="utf-8").splitlines()
                assert [json.loads(line)[0] for line in lines] == wanted.rows.tolist()
    assert len(wanted) > 5


def test_parquet_and_folders_of_datasets_are_read_in_blocks(tmp_path: Path, tokenizers: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    datasets = pytest.importorskip("datasets")
    sources, targets = zip(*texts(40, 2), strict=True)
    columns = {"en": list(sources), "fr": list(targets)}
    parquet.write_table(arrow.table(columns), tmp_path / "rows.parquet")
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "folder")
    for name in ("rows.parquet", "folder"):
        part = CorpusPart((str(tmp_path / name),), ("en", "fr"))
        split = split_of(part, longest=14)
        assert split.rows == 40
        encoded, _, blocks = prepared(split, tokenizers, tmp_path / f"{name}-out", tmp_path / "cache")
        assert blocks == [7] * 5 + [5]
        assert_same(encoded, row_by_row([part], tokenizers))


def test_processes_make_the_same_as_one(
    tmp_path: Path, tokenizers: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    part = CorpusPart((str(write_tsv(tmp_path / "train.tsv", texts(200, 3))),), (0, 1))
    one, _, _ = prepared(split_of(part, longest=14), tokenizers, tmp_path / "one", tmp_path / "cache-1")
    monkeypatch.setattr(encoding_cache, "SMALL", 0)
    monkeypatch.setenv("REGARD_PROCESSES", "2")
    two, _, blocks = prepared(split_of(part, longest=14), tokenizers, tmp_path / "two", tmp_path / "cache-2")
    assert_same(one, two)
    assert sum(blocks) == 200
    write_tsv(tmp_path / "train.tsv", [*texts(50, 3), ("", "x"), *texts(50, 4), ("y", ""), *texts(20, 5)])
    with pytest.raises(BadRowError, match=r"train\.tsv:51: .* is empty") as error:  # the earliest, whoever comes first
        prepared(split_of(part, longest=14), tokenizers, tmp_path / "three", tmp_path / "cache-3")
    assert error.value.__notes__
    monkeypatch.setenv("REGARD_PROCESSES", "many")
    with pytest.raises(ValueError, match="REGARD_PROCESSES is 'many'"):
        prepared(split_of(part, longest=9), tokenizers, tmp_path / "four", tmp_path / "cache-3")


SCRIPT = """
import sys
from pathlib import Path
from regard.data import corpus_stream, encoding_cache
from regard.data.corpus_stream import CorpusPart, Split
from regard.data.encoding_cache import PreparationCache
print("main", flush=True)
encoding_cache.SMALL, corpus_stream.BLOCK_ROWS = 0, 10
folder = Path(sys.argv[1])
part = CorpusPart((str(folder / "train.tsv"),), (0, 1))
cache = PreparationCache(folder / "cache")
split = Split((part,), (part.scan(),), longest=14)
encoding_cache.prepare_split(split, folder / "tokenizers", folder / "script", cache, print, print)
"""


def test_a_script_without_a_guard_is_not_run_again_by_the_processes(tmp_path: Path, tokenizers: Path) -> None:
    part = CorpusPart((str(write_tsv(tmp_path / "train.tsv", texts(50, 3))),), (0, 1))
    (tmp_path / "script.py").write_text(SCRIPT)
    out = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path],
        env={**os.environ, "REGARD_PROCESSES": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == ["main", *["10"] * 5]
    assert_same(EncodedCorpus.load(tmp_path / "script"), row_by_row([part], tokenizers))


def test_a_second_run_encodes_nothing_and_a_damaged_entry_is_made_again(
    tmp_path: Path, tokenizers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = CorpusPart((str(write_tsv(tmp_path / "train.tsv", texts(50, 3))),), (0, 1))
    first, _, blocks = prepared(split_of(part, longest=14), tokenizers, tmp_path / "one", tmp_path / "cache")
    assert blocks == [7] * 7 + [1]
    moved = CorpusPart((str((tmp_path / "train.tsv").rename(tmp_path / "moved.tsv")),), (0, 1))
    second, _, blocks = prepared(split_of(moved, longest=14), tokenizers, tmp_path / "two", tmp_path / "cache")
    assert blocks == []
    assert_same(first, second)
    _, _, blocks = prepared(split_of(moved, longest=8), tokenizers, tmp_path / "three", tmp_path / "cache")
    assert sum(blocks) == 50, "other settings are another entry"
    content = bytearray((tmp_path / "two" / "target.bin").read_bytes())
    content[0] ^= 1
    (tmp_path / "two" / "target.bin").write_bytes(content)  # a hard link: the entry is damaged too
    again, _, blocks = prepared(split_of(moved, longest=14), tokenizers, tmp_path / "four", tmp_path / "cache")
    assert sum(blocks) == 50
    assert "damaged" in capsys.readouterr().out
    assert again.target[0] == 1


def test_the_cache_removes_what_was_not_used_for_long(
    tmp_path: Path, tokenizers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PreparationCache(tmp_path / "cache")
    for number in range(3):
        part = CorpusPart((str(write_tsv(tmp_path / f"{number}.tsv", texts(20, number))),), (0, 1))
        prepared(split_of(part), tokenizers, tmp_path / f"out-{number}", cache.folder)
        os.utime(cache.entries()[-1].path, (time.time() - 1000 + number,) * 2)
    entries = cache.entries()
    assert len(entries) == 3
    monkeypatch.setenv("REGARD_CACHE_LIMIT", str((entries[1].bytes + entries[2].bytes) / 1e9))
    cache.prune()
    assert [entry.path for entry in cache.entries()] == [entries[1].path, entries[2].path]
    assert cache.clear() == (2, 0)
    assert len(EncodedCorpus.load(tmp_path / "out-0")) == 20, "runs keep their files"
    monkeypatch.setenv("REGARD_CACHE_LIMIT", "lots")
    with pytest.raises(ValueError, match="REGARD_CACHE_LIMIT is 'lots'"):
        cache.prune()


@pytest.mark.parametrize("hold_out", [0, 4])
def test_a_sample_is_spread_evenly(tmp_path: Path, hold_out: int) -> None:
    pairs = [(f"source {i}", f"target {i}") for i in range(100)]
    parts = [
        CorpusPart((str(write_tsv(tmp_path / "a.tsv", pairs[:45])),), (0, 1)),
        CorpusPart((str(write_tsv(tmp_path / "b.tsv.gz", pairs[45:], opened=gzip.open)),), (0, 1)),
    ]
    sampled = SampledPairs(split_of(*parts, hold_out=hold_out), 25)
    rows = [int(pair.source.split()[1]) for pair in sampled]
    assert rows == [int(pair.target.split()[1]) for pair in sampled]
    wanted = range(3, 100, 4)
    assert rows == [row for row in wanted if not hold_out or not is_held_out(row, hold_out)]


@pytest.mark.parametrize(("name", "opened"), [("train.tsv", open), ("train.tsv.gz", gzip.open)])
def test_a_file_that_changes_after_its_scan_is_an_error_and_never_comes_from_the_cache(
    tmp_path: Path, tokenizers: Path, name: str, opened: Any
) -> None:
    file, cache = tmp_path / name, tmp_path / "cache"
    part = CorpusPart((str(write_tsv(file, texts(20, 1), opened=opened)),), (0, 1))
    split = split_of(part, longest=14)
    write_tsv(file, texts(20, 2), opened=opened)
    with pytest.raises(ValueError, match=rf"{name} changed while it was read"):
        prepared(split, tokenizers, tmp_path / "one", cache)
    write_tsv(file, texts(20, 1), opened=opened)
    encoded, _, _ = prepared(split_of(part, longest=14), tokenizers, tmp_path / "two", cache)
    assert_same(encoded, row_by_row([part], tokenizers))


class PluginTokenizer(Tokenizer):
    plugin = f"{__name__}:PluginTokenizer"


def test_what_a_plugin_encodes_is_not_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file and its name are the same, and its code may be other code."""
    part = CorpusPart((str(write_tsv(tmp_path / "train.tsv", texts(20, 1))),), (0, 1))
    tokenizer = PluginTokenizer.train("bpe", 60, (text for pair in texts(60, 1) for text in pair))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        TokenizerPair(tokenizer, tokenizer).save(tmp_path / name)
    encoded, _, _ = prepared(split_of(part), tmp_path / "one", tmp_path / "one" / "train", tmp_path / "cache")
    assert_same(encoded, EncodedCorpus.build(part.reader, TokenizerPair(tokenizer, tokenizer), longest=None))
    monkeypatch.setattr(PluginTokenizer, "encode_batch", lambda self, texts: [[5] for _ in texts])
    encoded, _, _ = prepared(split_of(part), tmp_path / "two", tmp_path / "two" / "train", tmp_path / "cache")
    assert set(encoded.source.tolist()) == {5, 2}
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["plugins.json", "tokenizer.json", "train"]


KEYS = [letter * 40 for letter in "abc"]


@pytest.fixture
def cache(tmp_path: Path) -> PreparationCache:
    return PreparationCache(tmp_path / "cache")


def add_entry(cache: PreparationCache, key: str, *, used: int = 1000) -> Path:
    def fill(folder: Path) -> None:
        for name in ("report.json", "target.bin"):
            (folder / name).write_bytes(bytes(100))

    cache.keep("corpora", key, fill, print)
    os.utime(cache.path("corpora", key), (used, used))
    return cache.path("corpora", key)


def test_an_entry_without_checksums_is_made_again(cache: PreparationCache, tmp_path: Path) -> None:
    path, lines = add_entry(cache, KEYS[0]), list[str]()
    assert cache.take("corpora", KEYS[0], tmp_path / "one", lines.append)
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == ["report.json", "target.bin"]
    (path / CHECKSUMS).unlink()
    (path / "report.json").unlink()
    assert not cache.take("corpora", KEYS[0], tmp_path / "two", lines.append)
    assert not path.exists()
    assert len(lines) == 1
    assert "checksums.json is missing" in lines[0]


def test_an_entry_whose_removal_is_killed_is_no_entry(
    cache: PreparationCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_entry(cache, KEYS[0])

    def killed(folder: Path, **_: Any) -> None:
        if "cache" in folder.parts:
            (folder / "report.json").unlink(missing_ok=True)
            raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            cache.clear()
    assert not cache.take("corpora", KEYS[0], tmp_path / "one", print)
    assert cache.entries() == []


def test_one_that_is_removed_while_it_is_taken_is_no_entry(
    cache: PreparationCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add_entry(cache, KEYS[0])
    monkeypatch.setattr(os, "link", lambda *_: shutil.rmtree(path) or os.stat(path))
    assert not cache.take("corpora", KEYS[0], tmp_path / "one", print)
    assert not (tmp_path / "one").exists()


def test_two_that_make_an_entry_at_once_keep_the_first(cache: PreparationCache) -> None:
    path = add_entry(cache, KEYS[0])
    inode = path.stat().st_ino
    add_entry(cache, KEYS[0])
    assert path.stat().st_ino == inode


def test_clear_counts_what_is_gone(cache: PreparationCache, monkeypatch: pytest.MonkeyPatch) -> None:
    add_entry(cache, KEYS[0])
    with monkeypatch.context() as changed:
        changed.setattr(shutil, "rmtree", lambda *_, **__: None)  # a file system that refuses
        assert cache.clear() == (0, 1)
    assert cache.clear() == (1, 0)
    assert not any(cache.path("corpora", "").iterdir())


@pytest.fixture
def _many_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REGARD_PROCESSES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(192), raising=False)
    monkeypatch.setattr(encoding_cache, "CONTROL_GROUP", tmp_path, raising=False)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 32),
        ({"cpu.max": "max 100000\n"}, 32),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "9000000 100000\n"}, 32),
    ],
)
@pytest.mark.usefixtures("_many_cores")
def test_a_container_has_as_many_processes_as_its_quota(files: dict[str, str], count: int, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert process_count() == count


@pytest.mark.usefixtures("_many_cores")
def test_no_more_processes_than_cores_unless_the_variable_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3), raising=False)
    assert process_count() == 3
    monkeypatch.setenv("REGARD_PROCESSES", "64")
    assert process_count() == 64
