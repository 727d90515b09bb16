"""Resuming a stream: its place is kept where the rows are the same, and changed files are noticed."""

from __future__ import annotations

import gc
import json
import os
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pydantic")

from regard.data import Pair, TokenizerPair
from regard.data.streaming.pair_stream import held_out_pairs
from regard.training import fit
from regard.training.preparation.recipe_corpus import pair_stream
from regard.training.recipe import recipe_loader
from regard.training.streaming import stream_updates
from regard.training.streaming.stream_files import StreamFiles
from regard.training.streaming.stream_positions import StreamPosition, StreamPositions
from regard.training.streaming.stream_updates import StreamUpdates
from regard.training.tasks.task import recipe_task
from tests.support.tiny_training import corpus
from tests.training.streaming.test_stream_updates import EndlessStream, pairs_of, recipe_file

if TYPE_CHECKING:
    from pathlib import Path


def positions(folder: Path) -> list[StreamPosition]:
    return StreamPositions(folder / "data" / "stream.jsonl", writes=False).read()


def test_another_key_of_the_data_keeps_the_place_in_the_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe_file(tmp_path)
    run = fit(recipe_loader.load_recipe(file, ["training.updates=7"]), tmp_path / "run")
    before = positions(run.folder)
    place = next(each for each in reversed(before) if each.update <= 7)
    assert place.block > 0 or place.epoch > 0
    fit(recipe_loader.load_recipe(file, ["training.updates=8", "data.on_bad=skip"]), run.folder, resume=True)
    after = positions(run.folder)
    assert after[: len(before)] == before
    again = after[len(before)]  # the rows of the buffer may be others: it begins again
    assert (again.update, again.epoch, again.block) == (7, place.epoch, place.block)
    assert "begins again" not in capsys.readouterr().out
    changes = ["training.updates=9", "data.on_bad=skip", 'data.train=["train-1.tsv", "train-2.tsv"]']
    fit(recipe_loader.load_recipe(file, changes), run.folder, resume=True)
    assert [(each.update, each.epoch, each.block) for each in positions(run.folder)][:1] == [(8, 0, 0)]
    assert "the stream begins again" in capsys.readouterr().out


def test_an_epoch_whose_files_changed_begins_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = recipe_file(tmp_path)
    run = fit(recipe_loader.load_recipe(file, ["training.updates=4"]), tmp_path / "run")
    before = positions(run.folder)
    place = next(each for each in reversed(before) if each.update <= 4)
    assert place.block > 0
    corpus(tmp_path / "train-00.tsv", 80, seed=5)
    fit(recipe_loader.load_recipe(file, ["training.updates=5"]), run.folder, resume=True)
    again = positions(run.folder)[len(before)]
    assert (again.update, again.epoch, again.block) == (4, place.epoch, 0)
    message = f"data.train changed since update 4 (train-00.tsv): epoch {place.epoch} begins again"
    assert message in " ".join(capsys.readouterr().out.split())
    versions = json.loads((run.data / "stream_files.json").read_text())
    assert [len(stamps) for stamps in versions.values()] == [3, 4]
    fit(recipe_loader.load_recipe(file, ["training.updates=6"]), run.folder, resume=True)
    assert "begins again" not in capsys.readouterr().out


def test_files_are_the_same_in_another_folder_and_not_after_a_change(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    data: Any = recipe_loader.load_recipe(recipe_file(tmp_path / "a")).data
    before = StreamFiles.of(data)
    assert list(before.stamps) == ["train-0.tsv", "train-1.tsv", "train-2.tsv"]
    (tmp_path / "a").rename(tmp_path / "b")
    moved = data.model_copy(update={"root": str(tmp_path / "b")})
    assert StreamFiles.of(moved) == before
    os.utime(tmp_path / "b" / "train-1.tsv", (1, 1))
    before.record(tmp_path / "files.json")
    assert StreamFiles.of(moved).changes(tmp_path / "files.json", before.hash) == "train-1.tsv"


def test_the_commit_of_a_dataset_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    changes = ["data.dataset=made/up", 'data.columns=["en", "xx"]', 'data.train=["train"]', "data.valid=[]"]
    data: Any = recipe_loader.load_recipe(recipe_file(tmp_path), changes).data
    commits = iter(["a" * 40, "b" * 40])
    monkeypatch.setattr(hub.HfApi, "dataset_info", lambda *_, **__: SimpleNamespace(sha=next(commits)))
    first, second = StreamFiles.of(data), StreamFiles.of(data)
    assert first.stamps == {"made/up": "a" * 40}
    assert first.hash != second.hash

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(hub.HfApi, "dataset_info", offline)
    assert StreamFiles.of(data).hash == ""


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_file_that_validates_or_tests_is_not_trained_on(tmp_path: Path, split: str) -> None:
    data = f'train = ["*.tsv"]\n{split} = ["valid.tsv"]\nvalid_pairs = 6'
    recipe = recipe_loader.load_recipe(recipe_file(tmp_path, data))
    with pytest.raises(ValueError, match=rf"valid\.tsv: in data\.train = .* and in data\.{split} = .*trained on"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_split_of_a_dataset_that_validates_is_not_trained_on(tmp_path: Path) -> None:
    data = 'dataset = "made/up"\ncolumns = ["en", "xx"]\ntrain = ["train"]\nvalid = ["train"]'
    recipe: Any = recipe_loader.load_recipe(recipe_file(tmp_path, data))
    with pytest.raises(ValueError, match=r"train: in data\.train = .* and in data\.valid"):
        pair_stream(recipe.data)


def test_a_file_of_two_patterns_is_read_once(tmp_path: Path) -> None:
    data = 'train = ["train-0.tsv", "train-*.tsv"]\nvalid_pairs = 6'
    recipe: Any = recipe_loader.load_recipe(recipe_file(tmp_path, data))
    stream = pair_stream(recipe.data)
    rows = [pair for block in stream.blocks(0) for pair in zip(block.chunk.sources, block.chunk.targets, strict=True)]
    assert len(rows) == 3 * 80 - 6
    assert [[pair.source, pair.target] for pair in held_out_pairs(stream)] == pairs_of(tmp_path / "train-0.tsv")[:6]


def test_one_buffer_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    buffers: list[weakref.ref[Any]] = []
    encode, read_blocks = StreamUpdates._encode, StreamUpdates._read_blocks

    def counted_encode(self: StreamUpdates, blocks: Any, name: str) -> Any:
        encoded = encode(self, blocks, name)
        buffers.append(weakref.ref(encoded))
        return encoded

    def counted_read(self: StreamUpdates) -> Any:
        gc.collect()
        alive.append(sum(buffer() is not None for buffer in buffers))
        return read_blocks(self)

    monkeypatch.setattr(stream_updates.StreamUpdates, "_encode", counted_encode)
    monkeypatch.setattr(stream_updates.StreamUpdates, "_read_blocks", counted_read)
    recipe = recipe_loader.load_recipe(recipe_file(tmp_path))
    tokenizers = TokenizerPair.train("word", 20, [Pair("ba be", "baba bebe")], joint=False)
    stream: Any = EndlessStream()
    places = StreamPositions(tmp_path / "stream.jsonl", writes=True)
    options: dict[str, Any] = {"rank": 0, "world": 1, "fixed_shapes": False}
    updates = StreamUpdates(recipe, recipe_task(recipe), stream, tokenizers, places, **options)
    for update in range(8):
        assert updates[update]
    assert len(alive) > 2
    assert set(alive) == {0}
