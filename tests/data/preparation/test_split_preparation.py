"""Corpora encoded in blocks: the same as row by row, by any number of processes, after a kill, and from the cache."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from regard.data import EncodedCorpus, Pair, Tokenizer, TokenizerPair
from regard.data.encoded_corpus import ARRAYS
from regard.data.pair_reader import BadRowError
from regard.data.preparation import corpus_part, encode_shards, line_blocks, split_preparation
from regard.data.preparation.corpus_part import CorpusPart
from regard.data.preparation.hold_out import is_held_out
from regard.data.preparation.preparation_cache import PreparationCache
from regard.data.preparation.split_preparation import Split, prepare_split
from regard.data.preparation.vocabulary_sample import SampledPairs, sample_indices
from regard.data.text_lines import BOM

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
    for module in (line_blocks, corpus_part, split_preparation):
        monkeypatch.setattr(module, "BLOCK_LINES", 7)


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
    scanned = [part.scan() for part in parts]
    return Split(tuple(part for part, _ in scanned), tuple(scans for _, scans in scanned), **settings)


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


def write_tsv(path: Path, pairs: list[tuple[str, str]], *, opened: Any = open, ends: str = "\n") -> Path:
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        file.writelines(f"{source}\t{target}{ends}" for source, target in pairs)
    return path


def formats(folder: Path) -> Iterator[tuple[str, CorpusPart]]:
    pairs = texts(40, 2)
    tsv = write_tsv(folder / "plain.tsv", pairs)
    yield "tsv", CorpusPart((str(tsv),), (0, 1))
    yield "reversed columns", CorpusPart((str(tsv),), (1, 0))
    yield "windows", CorpusPart((str(write_tsv(folder / "windows.tsv", pairs, ends="\r\n")),), (0, 1))
    yield "gz", CorpusPart((str(write_tsv(folder / "packed.tsv.gz", pairs, opened=gzip.open)),), (0, 1))
    header = write_tsv(folder / "header.tsv", [("en", "fr"), *pairs])
    yield "header", CorpusPart((str(header),), ("fr", "en"))
    (folder / "mark.tsv").write_bytes(BOM + tsv.read_bytes())
    yield "byte order mark", CorpusPart((str(folder / "mark.tsv"),), (0, 1))
    for name in ("only.tsv", "only.csv", "only.en", "only.fr"):
        (folder / name).write_bytes(BOM)
    yield "only a mark", CorpusPart((str(folder / "only.tsv"),), (0, 1))
    yield "only a mark, names", CorpusPart((str(folder / "only.tsv"),), ("en", "fr"))
    yield "only a mark, csv", CorpusPart((str(folder / "only.csv"),), (0, 1))
    yield "only a mark, aligned", CorpusPart((str(folder / "only.en"), str(folder / "only.fr")))
    for i, side in enumerate(("en", "fr")):
        (folder / f"side.{side}").write_text("\n".join(pair[i] for pair in pairs), encoding="utf-8")
    yield "aligned", CorpusPart((str(folder / "side.en"), str(folder / "side.fr")))
    rows = "".join(json.dumps({"a": source, "b": {"c": target}}) + "\n" for source, target in pairs)
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    yield "jsonl", CorpusPart((str(folder / "rows.jsonl"),), ("a", "b.c"))
    (folder / "rows.csv").write_text("".join(f'"{a}","{b}"\n' for a, b in pairs), encoding="utf-8")
    yield "csv", CorpusPart((str(folder / "rows.csv"),), (0, 1))
    bad = [*pairs[:9], ("", "empty"), *pairs[9:20], ("one cell", ""), *pairs[20:]]
    yield "bad rows", CorpusPart((str(write_tsv(folder / "bad.tsv", bad)),), (0, 1), "skip")
    (folder / "bytes.tsv").write_bytes(tsv.read_bytes() + b"caf\xe9\tcoffee\nno cell\n")
    yield "bad bytes", CorpusPart((str(folder / "bytes.tsv"),), (0, 1), "skip")
    yield "long lines", CorpusPart((str(tsv),), (0, 1), in_blocks=False)


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
                lines = (
                    (tmp_path / f"{name}-{valid}" / split_preparation.PAIRS).read_text(encoding="utf-8").splitlines()
                )
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
    monkeypatch.setattr(split_preparation, "SMALL", 0)
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


def test_an_interrupted_preparation_goes_on_where_it_stopped(
    tmp_path: Path, tokenizers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = CorpusPart((str(write_tsv(tmp_path / "train.tsv", texts(50, 3))),), (0, 1))
    encode, encoded_blocks = encode_shards.encode_rows, []

    def interrupted(*values: Any) -> Any:
        encoded_blocks.append(values[2])
        if len(encoded_blocks) == 4:
            raise KeyboardInterrupt
        return encode(*values)

    monkeypatch.setattr(encode_shards, "encode_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared(split_of(part, longest=14), tokenizers, tmp_path / "one", tmp_path / "cache")
    (shards,) = (tmp_path / "cache" / "shards").iterdir()
    kept = sorted(shards.glob("*.shard"))
    assert len(kept) == 3
    kept[1].write_bytes(kept[1].read_bytes()[:-1])  # cut off by a full disk, say: made again
    encoded, _, blocks = prepared(split_of(part, longest=14), tokenizers, tmp_path / "two", tmp_path / "cache")
    assert len(encoded_blocks) == 4 + 8 - 2
    assert sum(blocks) == 50
    assert_same(encoded, row_by_row([part], tokenizers))
    assert not shards.exists()


KILLED = """
import sys, time
from pathlib import Path
from regard.data.preparation import corpus_part, encode_shards, line_blocks, split_preparation
from regard.data.preparation.corpus_part import CorpusPart
from regard.data.preparation.preparation_cache import PreparationCache
for module in (line_blocks, corpus_part, split_preparation):
    module.BLOCK_LINES = 7
folder = Path(sys.argv[1])
part, scans = CorpusPart((str(folder / "train.tsv"),), (0, 1)).scan()
def slow(rows):
    print(rows, flush=True)
    time.sleep(60 if sys.argv[2] == "slow" else 0)
split = split_preparation.Split((part,), (scans,), longest=14)
cache = PreparationCache(folder / "cache")
split_preparation.prepare_split(split, folder / "tokenizers", folder / sys.argv[2], cache, print, slow)
"""


def test_a_killed_process_frees_its_lock_and_leaves_its_shards(tmp_path: Path, tokenizers: Path) -> None:
    part = CorpusPart((str(write_tsv(tmp_path / "train.tsv", texts(50, 3))),), (0, 1))
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    process = subprocess.Popen([*command, "slow"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "7\n"
    waiting = subprocess.Popen([*command, "waiting"], stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    assert "waiting" in waiting.stdout.readline()  # two at once: the second one waits for the first
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert out.split() == ["7"] * 7 + ["1"]
    assert_same(EncodedCorpus.load(tmp_path / "waiting"), row_by_row([part], tokenizers))


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
    with cache.lock(entries[0].path.name):
        cache.prune()
        assert [entry.path for entry in cache.entries()] == [entries[0].path, entries[2].path], "one in use stays"
    cache.prune()
    assert [entry.path for entry in cache.entries()] == [entries[0].path, entries[2].path]
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


def test_sample_indices_count_what_they_should() -> None:
    for size, total in ((1, 10), (7, 10), (10, 10), (300_000, 3_000_001)):
        begins = range(0, total, max(1, total // 9))
        counts = [len(sample_indices(begin, min(begins.step, total - begin), size, total)) for begin in begins]
        assert sum(counts) == size


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


def test_shards_of_a_file_that_changes_between_two_blocks_hold_what_was_scanned(
    tmp_path: Path, tokenizers: Path
) -> None:
    file = tmp_path / "train.tsv"
    part = CorpusPart((str(write_tsv(file, texts(20, 1))),), (0, 1))
    split, cache = split_of(part, longest=14), PreparationCache(tmp_path / "cache")

    def change(rows: int) -> None:
        write_tsv(file, texts(20, 2))

    with pytest.raises(ValueError, match="changed while it was read"):
        prepare_split(split, tokenizers, tmp_path / "one", cache, print, change)
    write_tsv(file, texts(20, 1))
    encoded, _, blocks = prepared(split_of(part, longest=14), tokenizers, tmp_path / "two", cache.folder)
    assert blocks == [7, 7, 6]
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


@pytest.mark.parametrize("name", ["x.tsv.gz", "x.tsv.xz"])
def test_a_damaged_archive_is_named_with_the_line_as_by_the_row_reader(tmp_path: Path, name: str) -> None:
    file = write_tsv(tmp_path / "x.tsv", texts(4000, 1))
    packed = {".gz": gzip.compress, ".xz": lzma.compress}[name[-3:]](file.read_bytes())
    part = CorpusPart((str(tmp_path / name),), (0, 1))
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=rf"{name}:\d+: the file is damaged from here on") as of_rows:
        list(part.reader)
    with pytest.raises(ValueError, match="damaged") as of_blocks:
        part.scan()
    assert str(of_blocks.value) == str(of_rows.value)
