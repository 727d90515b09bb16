"""Weights, tags, BPE-dropout and back-translation, as a user types them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pydantic")

from typer.testing import CliRunner

from regard.commands import app
from regard.data import Batches, EncodedCorpus, TokenizerPair
from regard.data.corpora import phrasebook
from regard.training import Run
from regard.training.recipe.recipe_errors import RecipeError
from regard.training.recipe.recipe_loader import load_recipe
from regard.training.tasks.task import recipe_task
from tests.support.tiny_training import measured

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """
base = ["bahdanau-phrasebook"]
[data]
kind = "files"
root = "."
train = ["pairs.tsv"]
valid = ["valid.tsv"]
longest = 128
[tokenizer]
kind = "bpe"
size = 150
joint = true
[encoder]
embedding = 8
width = 8
[decoder]
embedding = 8
width = 8
[training]
updates = 4
tokens = 600
validate_every = 4
save_every = 2
log_every = 1
average = 1
warmup = 0
schedule = "constant"
accelerator = "cpu"
tensorboard = false
[search]
beams = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pairs, other pairs to validate with, and more French text."""
    monkeypatch.chdir(tmp_path)
    pairs = list(phrasebook.pairs(60, seed=1))
    for name, rows in (("pairs.tsv", pairs[:40]), ("valid.tsv", pairs[40:44]), ("other.tsv", pairs[44:54])):
        (tmp_path / name).write_text("".join(f"{p.source}\t{p.target}\n" for p in rows), encoding="utf-8")
    (tmp_path / "more.fr").write_text("".join(f"{p.target}\n" for p in pairs[54:]), encoding="utf-8")
    (tmp_path / "mine.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_weights_and_tags(folder: Path) -> None:
    settings = ['data.train=["pairs.tsv", "other.tsv"]', "data.weights=[1, 3]", 'data.tags=["<2fr>", "<2xx>"]']
    run("train", "mine.toml", *settings, "--out", "run")
    made = Run.open(folder / "run")
    tokenizers, encoded = TokenizerPair.load(made.data), EncodedCorpus.load(made.data / "train")
    french, other = (tokenizers.source.encode(tag) for tag in ("<2fr>", "<2xx>"))
    assert [len(french), len(other)] == [1, 1]
    assert max(french[0], other[0]) == len(tokenizers.source) - 1
    batches = recipe_task(made.recipe).batches(encoded, seed=1, epoch=0, rank=0, world=1, fixed_shapes=False)
    count = Counter(int(row) for batch in batches for row in batch.rows)
    assert count == {**dict.fromkeys(range(40), 1), **dict.fromkeys(range(40, 50), 3)}
    for batch in batches:
        for row, source in zip(batch.rows, batch.source, strict=True):
            assert source[0] == (french if row < 40 else other)[0]
    assert EncodedCorpus.load(made.data / "valid")[0][0][0] == french[0]
    assert "<2fr>" not in (made.data / "tokenizer.json").read_text(encoding="utf-8").partition('"model"')[2]
    assert run("translate", "--model", "run", "<2xx> the cat sleeps .")
    plain = Batches(encoded, tokens=600, seed=1)
    assert Counter(int(row) for batch in plain for row in batch.rows) == dict.fromkeys(range(50), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.weights=[1, 2]"], "2 weights for 1 corpus"),
        (["data.weights=[0]"], "data.weights"),
        (['data.tags=["a", "b"]'], "2 tags for 1 corpus"),
        (['data.tags=["a b"]'], "data.tags"),
        (["tokenizer.kind=word", "tokenizer.dropout=0.1"], "tokenizer.dropout leaves out merges"),
        (['data.tags=["<2fr>"]', "tokenizer.kind=word", "tokenizer.slots=4"], "data.tags and tokenizer.slots"),
    ],
)
def test_what_does_not_go_together_is_refused(folder: Path, settings: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message.replace("[", r"\[")):
        load_recipe(folder / "mine.toml", settings)


def test_a_tag_that_a_loaded_vocabulary_lacks_is_refused(folder: Path) -> None:
    run("train", "mine.toml", "training.updates=1", "--out", "run")
    with pytest.raises(ValueError, match="'<2fr>' is not one token"):
        run("train", "mine.toml", "tokenizer.load=run/model", 'data.tags=["<2fr>"]', "--out", "second")


def test_bpe_dropout_resumes_to_the_digit(folder: Path) -> None:
    settings = ["tokenizer.dropout=0.3", "training.schedule=constant"]
    run("train", "mine.toml", *settings, "training.updates=6", "--out", "whole")
    run("train", "mine.toml", *settings, "training.updates=2", "--out", "parts")
    run("train", "--resume", "parts", "training.updates=6")
    losses = [[row[2] for row in measured(folder / name) if row[2]] for name in ("whole", "parts")]
    assert losses[0] == losses[1]
    run("train", "mine.toml", "training.updates=6", "--out", "without")
    assert [row[2] for row in measured(folder / "without") if row[2]] != losses[0]


def test_back_translation(folder: Path) -> None:
    """The commands of docs/training.md."""
    run("train", "mine.toml", "data.columns=[1, 0]", "--out", "runs/back")
    (folder / "more.en").write_text(run("translate", "--model", "runs/back", "--file", "more.fr"), encoding="utf-8")
    assert len((folder / "more.en").read_text(encoding="utf-8").splitlines()) == 6
    both = ['data.train=["pairs.tsv", ["more.en", "more.fr"]]', 'data.tags=["", "<back>"]']
    run("train", "mine.toml", *both, "data.on_bad=skip", "--out", "runs/forward")
    made = Run.open(folder / "runs/forward")
    encoded, tokenizers = EncodedCorpus.load(made.data / "train"), TokenizerPair.load(made.data)
    tag = tokenizers.source.encode("<back>")[0]
    assert encoded.about.ends[0] == 40
    assert [int(encoded[i][0][0]) == tag for i in range(len(encoded))] == [row >= 40 for row in encoded.rows.tolist()]
