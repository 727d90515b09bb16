"""Processes that share the encoding of a stream have the batches that each would have alone."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pydantic")

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
    rows, shares = [0] * world, [BufferShares(tmp_path / "shares", "session", rank, world) for rank in range(world)]
    shares[0].clear()

    def work(rank: int) -> EncodedCorpus:
        def build(chunks: Iterable[RowChunk], *, folder: Path | None = None) -> EncodedCorpus:
            chunks = list(chunks)
            rows[rank] += sum(len(chunk.rows) for chunk in chunks)
            return EncodedCorpus.build_chunks(chunks, tokenizers, longest=9, folder=folder)

        return shares[rank].build("0-0-0", list(row_chunks(PAIRS, 10)), build)

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

    folder = tmp_path / "shares" / "session"
    BufferShares(tmp_path / "shares", "session", 0, 2).clear()
    shared = together(2, lambda rank: first_items(rank, BufferShares(tmp_path / "shares", "session", rank, 2)))
    for rank, items in enumerate(shared):
        for got, expected in zip(items, first_items(rank, None), strict=True):
            for mine, alone in zip(got, expected, strict=True):
                assert mine.rows.tolist() == alone.rows.tolist()
                assert mine.source.tolist() == alone.source.tolist()
                assert mine.target.tolist() == alone.target.tolist()
    assert 0 < len(list(folder.glob("*.0"))) <= 2
    assert 0 < len(list(folder.glob("*.1"))) <= 2


@pytest.fixture
def build(tokenizers: TokenizerPair) -> Any:
    return partial(EncodedCorpus.build_chunks, tokenizers=tokenizers)


def test_nobody_waits_for_a_process_that_ended(build: Any, tmp_path: Path) -> None:
    first, second = (BufferShares(tmp_path / "shares", "session", rank, 2) for rank in range(2))
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
    shares = BufferShares(tmp_path / "shares", "session", 0, 2)
    shares.clear()
    with pytest.raises(RuntimeError, match=r"process 1 has not written .*does not share the run's folder"):
        shares.build("0-0-0", list(row_chunks(PAIRS)), build)


def test_an_end_removes_the_shares_of_a_process_and_the_last_end_the_folder(build: Any, tmp_path: Path) -> None:
    shares = [BufferShares(tmp_path / "shares", "session", rank, 2) for rank in range(2)]
    shares[0].clear()
    together(2, lambda rank: shares[rank].build("0-0-0", list(row_chunks(PAIRS)), build))
    folder = tmp_path / "shares" / "session"
    assert (folder / "0-0-0.0").is_dir()
    shares[0].end()
    assert not (folder / "0-0-0.0").exists()
    assert (folder / "0-0-0.1").is_dir()
    for each in (shares[1], *shares):  # after an exception, a process ends twice
        each.end()
        assert not (tmp_path / "shares").exists()
    with pytest.raises(RuntimeError, match="has ended"):  # a worker that reads ahead does not make the folder again
        shares[0].build("0-0-1", list(row_chunks(PAIRS)), build)
    assert not (tmp_path / "shares").exists()


def test_shares_of_a_killed_session_are_not_read(build: Any, tmp_path: Path) -> None:
    """A worker whose process was killed encodes its share to the end, after another session has begun."""
    chunks = list(row_chunks(PAIRS, 10))
    killed = BufferShares(tmp_path / "shares", "before", 0, 2)
    killed.clear()
    build(chunks[:5], folder=killed.folder / "0-0-0.0")
    now = [BufferShares(tmp_path / "shares", "now", rank, 3) for rank in range(3)]
    now[0].clear()
    build(chunks[:5], folder=killed.folder / "0-0-0.0")  # as the last moment of the worker
    for encoded in together(3, lambda rank: now[rank].build("0-0-0", chunks, build)):
        assert encoded.rows.tolist() == list(range(100))
