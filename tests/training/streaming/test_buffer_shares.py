"""Processes that share the encoding of a stream have the batches that each would have alone."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pytorch_lightning")

from regard.data import EncodedCorpus, Pair, TokenizerPair
from regard.data.preparation.row_chunk import row_chunks
from regard.training.recipe import recipe_loader
from regard.training.streaming import buffer_shares, stream_updates
from regard.training.streaming.buffer_shares import BufferShares
from regard.training.streaming.stream_positions import StreamPositions
from regard.training.streaming.stream_updates import StreamUpdates
from regard.training.tasks.task import recipe_task
from tests.training.streaming.test_stream_updates import EndlessStream, recipe_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from regard.data import Batch
    from regard.data.preparation.row_chunk import RowChunk

PAIRS = [Pair(f"a{i % 7} b{i % 5}", f"c{i % 3}" * (1 + i % 4), i) for i in range(100)]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return TokenizerPair.train("character", 100, PAIRS)


def together(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What each process returns; here they are threads."""
    results: dict[int, Any] = {}

    def run(rank: int) -> None:
        results[rank] = work(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 16])
def test_each_process_encodes_its_part_and_has_the_whole(world: int, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    whole = EncodedCorpus.build(PAIRS, tokenizers, longest=9)
    assert 0 < whole.about.dropped < 100
    rows = [0] * world

    def work(rank: int) -> EncodedCorpus:
        def build(chunks: Iterable[RowChunk], *, folder: Path | None = None) -> EncodedCorpus:
            chunks = list(chunks)
            rows[rank] += sum(len(chunk.rows) for chunk in chunks)
            return EncodedCorpus.build_chunks(chunks, tokenizers, longest=9, folder=folder)

        return BufferShares(tmp_path / "shares", rank, world).build("0-0-0", list(row_chunks(PAIRS, 10)), build)

    for encoded in together(world, work):
        assert encoded.about == whole.about
        for name, array in whole.arrays().items():
            assert (encoded.arrays()[name] == array).all(), name
    assert sum(rows) == 100
    assert max(rows) <= 10 * -(-10 // world)


def test_batches_are_the_same_and_old_shares_are_removed(
    tmp_path: Path, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_updates, "CHUNK", 8)
    recipe = recipe_loader.load_recipe(recipe_file(tmp_path))

    def first_items(rank: int, shares: BufferShares | None, count: int = 12) -> list[list[Batch]]:
        positions = StreamPositions(tmp_path / f"stream-{rank}-{shares is None}.jsonl", writes=True)
        updates = StreamUpdates(
            recipe,
            recipe_task(recipe),
            EndlessStream(),  # type: ignore[arg-type]
            tokenizers,
            positions,
            rank=rank,
            world=2,
            fixed_shapes=False,
            shares=shares,
        )
        items = [updates[n] for n in range(count)]
        assert len(positions.read()) > 2
        return items

    shared = together(2, lambda rank: first_items(rank, BufferShares(tmp_path / "shares", rank, 2)))
    for rank, items in enumerate(shared):
        for got, expected in zip(items, first_items(rank, None), strict=True):
            for mine, alone in zip(got, expected, strict=True):
                assert mine.rows.tolist() == alone.rows.tolist()
                assert mine.source.tolist() == alone.source.tolist()
                assert mine.target.tolist() == alone.target.tolist()
    assert len(list((tmp_path / "shares").glob("*.0"))) <= 2
    assert len(list((tmp_path / "shares").glob("*.1"))) <= 2


@pytest.fixture
def build(tokenizers: TokenizerPair) -> Any:
    return partial(EncodedCorpus.build_chunks, tokenizers=tokenizers)


def test_nobody_waits_for_a_process_that_ended(build: Any, tmp_path: Path) -> None:
    first, second = (BufferShares(tmp_path / "shares", rank, 2) for rank in range(2))
    first.clear()
    second.end()
    with pytest.raises(RuntimeError, match="process 1 has ended, and its share of the buffer 0-0-0 is missing"):
        first.build("0-0-0", list(row_chunks(PAIRS)), build)
    first.clear()
    first.end()  # a worker that reads ahead ends with its own process
    with pytest.raises(RuntimeError, match="has ended"):
        first.build("0-0-1", list(row_chunks(PAIRS)), build)


def test_waiting_has_a_limit(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_shares, "LIMIT", 0.1)
    shares = BufferShares(tmp_path / "shares", 0, 2)
    with pytest.raises(RuntimeError, match=r"process 1 has not written .*does not share the run's folder"):
        shares.build("0-0-0", list(row_chunks(PAIRS)), build)


def test_an_end_removes_the_shares_of_a_process(build: Any, tmp_path: Path) -> None:
    alone = BufferShares(tmp_path / "shares", 0, 1)
    alone.clear()
    alone.build("0-0-0", list(row_chunks(PAIRS)), build)
    assert (tmp_path / "shares" / "0-0-0.0").is_dir()
    alone.end()
    assert not (tmp_path / "shares" / "0-0-0.0").exists()
    BufferShares(tmp_path / "nothing", 0, 1).end()  # before anything began
