"""Streams of pairs: the same rows as the readers give, from any position."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest

from regard.data import corpus_stream as corpus_blocks
from regard.data.corpus_stream import CorpusPart, PairStream, held_out_pairs
from regard.data.rows import BadRowError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from regard.data.corpus_stream import CheckedRows

ROWS = 25


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_blocks, "BLOCK_ROWS", 10)


def sources(blocks: Iterable[CheckedRows]) -> list[str]:
    return list(chain.from_iterable([pair.source for pair in block.pairs] for block in blocks))


def write_files(folder: Path) -> list[Path]:
    """Three corpora of ROWS pairs: TSV, JSON lines and Parquet."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [[(f"source {kind} {i}", f"target {kind} {i}") for i in range(ROWS)] for kind in "abc"]
    files = [folder / "a.tsv", folder / "b.jsonl", folder / "c.parquet"]
    files[0].write_text("x\ty\n" + "".join(f"{x}\t{y}\n" for x, y in rows[0]))
    files[1].write_text("".join(f'{{"x": "{x}", "y": "{y}"}}\n' for x, y in rows[1]))
    parquet.write_table(pyarrow.table({"x": [x for x, _ in rows[2]], "y": [y for _, y in rows[2]]}), files[2])
    return files


def test_an_epoch_of_files_has_every_pair_once_and_begins_at_any_block(tmp_path: Path) -> None:
    parts = tuple(CorpusPart((str(file),), ("x", "y")) for file in write_files(tmp_path))
    stream = PairStream(parts, seed=3)
    every = sorted(pair.source for part in parts for pair in part.reader)
    epochs = [[sources([block]) for block in stream.blocks(epoch)] for epoch in range(6)]
    for epoch, blocks in enumerate(epochs):
        assert sorted(chain.from_iterable(blocks)) == every
        assert max(map(len, blocks)) <= 10
        for start in range(len(blocks) + 1):
            assert [sources([block]) for block in stream.blocks(epoch, start)] == blocks[start:]
    assert len({tuple(blocks[0]) for blocks in epochs}) > 1  # files come in another order


def test_pairs_that_validate_are_in_no_block(tmp_path: Path) -> None:
    stream = PairStream(tuple(CorpusPart((str(file),), ("x", "y")) for file in write_files(tmp_path)), 3, held_out=4)
    held_out = [pair.source for pair in held_out_pairs(stream)]
    assert len(held_out) == 4
    for epoch in range(3):
        assert not set(held_out) & set(sources(stream.blocks(epoch)))
        assert len(sources(stream.blocks(epoch))) == 3 * ROWS - 4
    assert sources(stream.blocks(0, 1)) == sources(list(stream.blocks(0))[1:])


def test_a_bad_row_is_an_error_or_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("".join(f"source {i}\ttarget {i}\n" if i != 12 else "alone\n" for i in range(ROWS)))
    with pytest.raises(BadRowError, match=r"a\.tsv:13: the line has 1 column"):
        list(PairStream((CorpusPart((str(file),)),)).blocks(0))
    blocks = list(PairStream((CorpusPart((str(file),), on_bad="skip"),)).blocks(0))
    assert [block.reasons.total() for block in blocks] == [0, 1, 0]
    assert len(sources(blocks)) == ROWS - 1
