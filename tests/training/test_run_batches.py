"""Training on a stream: resumed to the digit, with one buffer in memory, on the files of its beginning."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from regard.data import Pair, TokenizerPair
from regard.data.corpus_stream import CheckedRows, held_out_pairs
from regard.training import fit, recipe_files
from regard.training.corpora import pair_stream
from regard.training.recipe_sections import RecipeError
from regard.training.run_batches import StreamPosition, StreamPositions, StreamUpdates
from regard.training.tasks import recipe_task
from tests.support.tiny_training import corpus, measured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SETTINGS = """
base = ["bahdanau-phrasebook"]
[data]
kind = "stream"
root = '{folder}'
{data}
buffer = 100
longest = 50
tokenised = true
[encoder]
embedding = 8
width = 8
[decoder]
embedding = 8
width = 8
[training]
updates = 14
tokens = 300
rate = 0.01
schedule = "constant"
warmup = 0
log_every = 1
save_every = 7
validate_every = 14
average = 1
[search]
beams = 1
"""
FILES = 'train = ["train-*.tsv"]\nvalid = ["valid.tsv"]'


def recipe_file(folder: Path, data: str = FILES) -> Path:
    for number in range(3):
        corpus(folder / f"train-{number}.tsv", 80, seed=number)
    corpus(folder / "valid.tsv", 6, seed=9)
    file = folder / "stream.toml"
    file.write_text(SETTINGS.format(folder=folder, data=data))
    return file


def pairs_of(file: Path) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text().splitlines()]


def test_a_stream_resumes_to_the_digit_and_goes_on_with_other_batches(tmp_path: Path) -> None:
    file = recipe_file(tmp_path)
    whole = fit(recipe_files.load_recipe(file), tmp_path / "whole")
    assert not (whole.data / "train").exists()
    fit(recipe_files.load_recipe(file, ["training.updates=7"]), tmp_path / "parts")
    parts = fit(recipe_files.load_recipe(file, ["training.workers=1"]), tmp_path / "parts", resume=True)
    lines = [line[:4] for line in measured(whole.folder) if line[2]]
    assert [line[:4] for line in measured(parts.folder) if line[2]] == lines
    epochs = [int(line[1]) for line in lines]
    assert epochs == sorted(epochs)
    assert epochs[-1] >= 1  # the corpus came more than once
    positions = StreamPositions(parts.data / "stream.jsonl", writes=False).read()
    assert {each.pairs for each in positions} == {80, 160}  # whole blocks, at least 100 pairs or the rest
    fewer = fit(
        recipe_files.load_recipe(file, ["training.tokens=150", "training.updates=18"]), parts.folder, resume=True
    )
    every = StreamPositions(parts.data / "stream.jsonl", writes=False).read()
    other = next(each for each in every if each.settings != positions[0].settings)
    before = next(each for each in reversed(positions) if each.update <= 14)
    assert (other.update, other.epoch, other.block) == (14, before.epoch, before.block)
    assert len(measured(fewer.folder)) > len(measured(whole.folder))


def test_it_trains_from_parquet_without_a_validation_file(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = 'train = ["train-*.parquet"]\nvalid_pairs = 6\ncolumns = ["en", "xx"]'
    file = recipe_file(tmp_path, data)
    for number in range(3):
        columns = zip(*pairs_of(tmp_path / f"train-{number}.tsv"), strict=True)
        table = pyarrow.table(dict(zip(("en", "xx"), map(list, columns), strict=True)))
        parquet.write_table(table, tmp_path / f"train-{number}.parquet")
    run = fit(recipe_files.load_recipe(file, ["training.updates=2"]), tmp_path / "run")
    valid = [json.loads(line)[1:] for line in (run.data / "valid.jsonl").read_text().splitlines()]
    assert valid == pairs_of(tmp_path / "train-0.tsv")[:6]
    with pytest.raises(ValueError, match="valid_pairs = 100 takes all pairs of the first file"):
        fit(recipe_files.load_recipe(file, ["data.valid_pairs=100", 'data.train=["train-0.parquet"]']), tmp_path / "b")


class EndlessStream:
    """Blocks of 50 pairs without an end; it counts them."""

    held_out = 0

    def __init__(self) -> None:
        self.read = 0

    def blocks(self, epoch: int, start: int = 0) -> Iterator[CheckedRows]:
        while True:
            self.read += 1
            rows = [Pair("ba be", "baba bebe", row) for row in range(50)]
            yield CheckedRows(rows, Counter())


def test_no_more_than_a_buffer_is_read_ahead(tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe(recipe_file(tmp_path))
    tokenizers = TokenizerPair.train("word", 20, [Pair("ba be", "baba bebe")], joint=False)
    stream: Any = EndlessStream()
    positions = StreamPositions(tmp_path / "stream.jsonl", writes=True)
    options: dict[str, Any] = {"rank": 0, "world": 1, "fixed_shapes": False}
    updates = StreamUpdates(recipe, recipe_task(recipe), stream, tokenizers, positions, **options)
    done = 0
    for update in range(40):
        done += sum(len(batch.rows) for batch in updates[update])
        assert done <= 50 * stream.read <= done + 100  # data.buffer
    with (tmp_path / "stream.jsonl").open("a") as file:
        file.write('{"update": 40, "num')  # cut by a kill
    again = StreamUpdates(recipe, recipe_task(recipe), EndlessStream(), tokenizers, positions, **options)  # type: ignore[arg-type]
    assert again[39][0].rows.tolist() == updates[39][0].rows.tolist()
    assert positions.find(39) == positions.read()[-1]


def test_two_processes_share_every_buffer(tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe(recipe_file(tmp_path), ["data.buffer=50"])
    tokenizers = TokenizerPair.train("word", 20, [Pair("ba be", "baba bebe")], joint=False)
    positions = StreamPositions(tmp_path / "stream.jsonl", writes=False)
    ranks = [
        StreamUpdates(
            recipe,
            recipe_task(recipe),
            EndlessStream(),
            tokenizers,
            positions,
            rank=rank,
            world=2,
            fixed_shapes=False,  # type: ignore[arg-type]
        )
        for rank in range(2)
    ]
    rows = [row for updates in ranks for batch in updates[0] for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(50))
    assert not (tmp_path / "stream.jsonl").exists()


def test_a_stream_is_translated(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r'data\.kind = "stream" is for task = "translate"'):
        recipe_files.load_recipe(recipe_file(tmp_path), ["task=classify"])


def test_files_that_changed_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = recipe_file(tmp_path)
    run = fit(recipe_files.load_recipe(file, ["training.updates=4"]), tmp_path / "run")
    fit(recipe_files.load_recipe(file, ["training.updates=5"]), run.folder, resume=True)
    assert "changed since" not in capsys.readouterr().out
    corpus(tmp_path / "train-00.tsv", 80, seed=5)
    fit(recipe_files.load_recipe(file, ["training.updates=6"]), run.folder, resume=True)
    assert "data.train changed since update 5" in " ".join(capsys.readouterr().out.split())


def test_a_pattern_without_files_names_the_folder(tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe(recipe_file(tmp_path), ['data.train=["none-*.tsv"]'])
    with pytest.raises(ValueError, match=r"data\.train: there is no .*none-\*\.tsv"):
        fit(recipe, tmp_path / "run")


def test_a_bad_row_says_how_it_is_skipped(tmp_path: Path) -> None:
    file = recipe_file(tmp_path, 'train = ["train-1.tsv"]\nvalid = ["valid.tsv"]')
    with (tmp_path / "train-1.tsv").open("a") as corpus_file:
        corpus_file.write("alone\n")
    with pytest.raises(ValueError, match=r"train-1\.tsv:81: .*data\.on_bad=skip"):
        fit(recipe_files.load_recipe(file, ["tokenizer.sample=50"]), tmp_path / "run")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_file_that_validates_or_tests_is_not_trained_on(tmp_path: Path, split: str) -> None:
    data = f'train = ["*.tsv"]\n{split} = ["valid.tsv"]\nvalid_pairs = 6'
    recipe = recipe_files.load_recipe(recipe_file(tmp_path, data))
    with pytest.raises(ValueError, match=rf"valid\.tsv: in data\.train = .* and in data\.{split} = .*trained on"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_of_two_patterns_is_read_once(tmp_path: Path) -> None:
    data = 'train = ["train-0.tsv", "train-*.tsv"]\nvalid_pairs = 6'
    recipe: Any = recipe_files.load_recipe(recipe_file(tmp_path, data))
    stream = pair_stream(recipe.data)
    rows = [pair for block in stream.blocks(0) for pair in block.pairs]
    assert len(rows) == 3 * 80 - 6
    assert [[pair.source, pair.target] for pair in held_out_pairs(stream)] == pairs_of(tmp_path / "train-0.tsv")[:6]


def test_one_buffer_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    buffers: list[weakref.ref[Any]] = []
    encode, read_blocks = StreamUpdates._encode, StreamUpdates._read_blocks

    def counted_encode(self: StreamUpdates, blocks: Any) -> Any:
        encoded = encode(self, blocks)
        buffers.append(weakref.ref(encoded))
        return encoded

    def counted_read(self: StreamUpdates) -> Any:
        alive.append(sum(buffer() is not None for buffer in buffers))
        return read_blocks(self)

    monkeypatch.setattr(StreamUpdates, "_encode", counted_encode)
    monkeypatch.setattr(StreamUpdates, "_read_blocks", counted_read)
    recipe = recipe_files.load_recipe(recipe_file(tmp_path))
    tokenizers = TokenizerPair.train("word", 20, [Pair("ba be", "baba bebe")], joint=False)
    stream: Any = EndlessStream()
    places = StreamPositions(tmp_path / "stream.jsonl", writes=True)
    options: dict[str, Any] = {"rank": 0, "world": 1, "fixed_shapes": False}
    updates = StreamUpdates(recipe, recipe_task(recipe), stream, tokenizers, places, **options)
    for update in range(8):
        assert updates[update]
    assert len(alive) > 2
    assert set(alive) == {0}


@pytest.mark.parametrize("damage", ['{"update": 5, "num', "\0\0\0\0\n", '{"update": 5}\n'])
def test_a_damaged_line_is_left_out_and_replaced(tmp_path: Path, damage: str) -> None:
    first, second = StreamPosition(0, 0, 0, 0, "s", 9, 0, 0), StreamPosition(5, 1, 0, 2, "s", 9, 0, 0)
    file = tmp_path / "stream.jsonl"
    positions = StreamPositions(file, writes=True)
    positions.append(first)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(damage)
    assert positions.read() == [first]
    positions.append(second)
    assert positions.read() == [first, second]
    assert [positions.find(update) for update in (4, 5)] == [first, second]
