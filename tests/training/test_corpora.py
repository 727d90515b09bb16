"""Corpora: their splits; prepared, the same by any number of processes; several with tags."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from regard.commands import app
from regard.data import EncodedCorpus, TokenizerPair
from regard.data.corpora import phrasebook
from regard.data.corpus_stream import is_held_out
from regard.files import sha256
from regard.training import Run, corpora
from regard.training.corpora import CorpusPreparation, check
from regard.training.recipe_files import load_recipe
from regard.training.recipe_sections import FilesData, RecipeError, StreamData
from regard.training.tasks import recipe_task
from tests.support.tiny_training import recipe_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in {"train": "a\tb\n", "copy": "a\tb\n", "other": "c\td\n", "empty": "", "none": ""}.items():
        (tmp_path / f"{name}.tsv").write_text(content)
    (tmp_path / "link.tsv").symlink_to(tmp_path / "train.tsv")
    (tmp_path / "below").mkdir()
    return tmp_path


KINDS = [FilesData, StreamData]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("name", ["train.tsv", "link.tsv", "below/../train.tsv"])
def test_the_same_file_is_refused(kind: type[FilesData | StreamData], root: Path, split: str, name: str) -> None:
    names = {"valid": ["other.tsv"], split: [name]}
    with pytest.raises(ValueError, match=rf"train\.tsv: in data\.train = .* and in data\.{split} = .*trained on"):
        check(kind(root=str(root), train=["train.tsv"], **names))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_copy_is_refused(kind: type[FilesData | StreamData], root: Path, split: str) -> None:
    names = {"valid": ["other.tsv"], split: ["copy.tsv"]}
    with pytest.raises(ValueError, match=rf"train\.tsv of data\.train and .*copy\.tsv of data\.{split} have the same"):
        check(kind(root=str(root), train=["train.tsv"], **names))


def test_the_error_says_how_to_validate_with_a_part_of_the_file(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.hold_out = 10"):
        check(FilesData(root=str(root), train=["train.tsv"], valid=["train.tsv"]))
    with pytest.raises(ValueError, match=r"in data\.test .*give data\.test another file$"):
        check(FilesData(root=str(root), train=["train.tsv"], valid=[], hold_out=10, test=["train.tsv"]))


@pytest.mark.parametrize("kind", KINDS)
def test_other_files_are_accepted(kind: type[FilesData | StreamData], root: Path) -> None:
    """Files of labels may be the same, and so may empty files, and those that validate and test."""
    labels = kind(root=str(root), train=[["train.tsv", "copy.tsv"]], valid=[["other.tsv", "copy.tsv"]])
    check(labels)
    check(kind(root=str(root), train=["train.tsv", "empty.tsv"], valid=["other.tsv"], test=["other.tsv", "none.tsv"]))


def prepare(file: Path, folder: Path, *settings: str) -> tuple[Run, list[str]]:
    recipe = load_recipe(file, settings)
    lines: list[str] = []
    folder.mkdir()
    run = Run.create(recipe, folder)
    CorpusPreparation(run, recipe_task(recipe), lines.append).prepare()
    return run, lines


def content(run: Run) -> dict[str, str]:
    files = (path for path in run.data.rglob("*") if path.is_file())
    return {path.relative_to(run.data).as_posix(): sha256(path) for path in files}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return recipe_file(tmp_path)


def test_several_processes_prepare_the_same(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, lines = prepare(file, tmp_path / "first")
    monkeypatch.setattr(corpora, "SMALL", 0)
    second, _ = prepare(file, tmp_path / "second", "seed=7")
    assert content(first) == content(second)
    assert any(line.startswith("train: 300 pairs") for line in lines)


@pytest.mark.parametrize("hold_out", [0, 4])
def test_a_sample_is_spread_evenly(tmp_path: Path, hold_out: int) -> None:
    for name, first, last in (("a", 0, 45), ("b", 45, 100)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"source {i}\ttarget {i}\n" for i in range(first, last)))
    valid = [] if hold_out else ["a.tsv"]
    data = FilesData(root=str(tmp_path), train=["a.tsv", "b.tsv"], valid=valid, hold_out=hold_out)
    rows = [int(pair.source.split()[1]) for pair in corpora.EvenSample(corpora.read(data, "train"), 25, 100)]
    assert rows == [row for row in range(3, 100, 4) if not hold_out or not is_held_out(row, hold_out)]


def test_a_vocabulary_is_learned_from_a_sample_of_a_large_corpus(file: Path, tmp_path: Path) -> None:
    every, lines = prepare(file, tmp_path / "all", "tokenizer.kind=bpe")
    same, _ = prepare(file, tmp_path / "same", "tokenizer.kind=bpe", "tokenizer.sample=300")
    assert content(every) == content(same)
    assert not any("tokenizer.sample" in line for line in lines)
    sampled, lines = prepare(file, tmp_path / "few", "tokenizer.kind=bpe", "tokenizer.sample=2")
    assert "it is learned from 2 of 300 rows (tokenizer.sample)" in lines
    assert len(TokenizerPair.load(sampled.data).source) < len(TokenizerPair.load(every.data).source)


def test_what_earlier_versions_prepared_is_prepared_again_alike(file: Path, tmp_path: Path) -> None:
    """The hashes are those of the version that read and encoded row by row."""
    run, _ = prepare(file, tmp_path / "run", "data.hold_out=5", "data.valid=[]", "tokenizer.kind=bpe")
    hashes = {name: digest[:12] for name, digest in content(run).items()}
    assert hashes == {**hashes, **ROW_BY_ROW}


ROW_BY_ROW = {
    "tokenizer.json": "768cd01a41b0",
    "train/rows.bin": "b3f9a56459dd",
    "train/source.bin": "cc551f645bc4",
    "train/source_lengths.bin": "802e193aea50",
    "train/source_starts.bin": "8db4e8962184",
    "train/target.bin": "e38cb64d5f7a",
    "train/target_lengths.bin": "a1aeb90cd0f1",
    "valid/rows.bin": "82c64e5359b1",
    "valid/source.bin": "ca31181943b1",
    "valid/source_lengths.bin": "420a5a585ef4",
    "valid/source_starts.bin": "f7a7101a6b3b",
    "valid/target.bin": "34ce27b3944c",
    "valid/target_lengths.bin": "c00336ae68e9",
    "valid.jsonl": "9310d0783d16",
}


def test_valid_pairs_are_those_of_the_split(file: Path, tmp_path: Path) -> None:
    run, _ = prepare(file, tmp_path / "run")
    texts = (run.data / corpora.VALID_PAIRS).read_text(encoding="utf-8").splitlines()
    assert len(texts) == len(EncodedCorpus.load(run.data / "valid")) == 12


def test_no_row_is_left_out_unless_the_recipe_says_so(file: Path) -> None:
    assert load_recipe(file).tokenizer.sample == 0


@pytest.mark.parametrize("kind", ["word", "character"])
def test_a_sample_takes_no_letter_or_word_from_a_vocabulary_of_them(kind: str, file: Path, tmp_path: Path) -> None:
    with (tmp_path / "train.tsv").open("a", encoding="utf-8") as corpus:
        corpus.write("ba ñ\tbaba ñ\nbe\tbebe\n")
    run, lines = prepare(file, tmp_path / "run", f"tokenizer.kind={kind}", "tokenizer.sample=4")
    source = TokenizerPair.load(run.data).source
    assert source.decode(source.encode("ba ñ")) == "ba ñ"
    assert not any("tokenizer.sample" in line for line in lines)


@pytest.mark.parametrize("joint", [True, False])
def test_the_size_of_the_vocabulary_is_said(file: Path, tmp_path: Path, joint: bool) -> None:
    settings = ["tokenizer.size=100000", f"tokenizer.joint={str(joint).lower()}"]
    run, lines = prepare(file, tmp_path / "run", *settings)
    tokenizers = TokenizerPair.load(run.data)
    sizes = {"source vocabulary": tokenizers.source, "target vocabulary": tokenizers.target}
    for name, tokenizer in ({"vocabulary": tokenizers.source} if joint else sizes).items():
        assert f"{name}: {len(tokenizer):,} of at most 100,000 tokens" in lines


def test_a_header_that_is_read_as_a_row_is_said(file: Path, tmp_path: Path) -> None:
    rows = (tmp_path / "train.tsv").read_text(encoding="utf-8")
    (tmp_path / "train.tsv").write_text(f"source\ttarget\n{rows}", encoding="utf-8")
    said = "\n".join(prepare(file, tmp_path / "run")[1])
    assert "train.tsv:1 looks like a header ('source', 'target')" in said
    assert 'data.columns = ["source", "target"]' in said


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


def test_a_corpus_that_comes_several_times_and_tags(folder: Path) -> None:
    tags = 'data.tags=["<2fr>", "<2xx>", "<2xx>", "<2xx>"]'
    settings = ['data.train=["pairs.tsv", "other.tsv", "other.tsv", "other.tsv"]', tags]
    run("train", "mine.toml", *settings, "--out", "run")
    made = Run.open(folder / "run")
    tokenizers, encoded = TokenizerPair.load(made.data), EncodedCorpus.load(made.data / "train")
    french, other = (tokenizers.source.encode(tag) for tag in ("<2fr>", "<2xx>"))
    assert [len(french), len(other)] == [1, 1]
    assert max(french[0], other[0]) == len(tokenizers.source) - 1
    batches = recipe_task(made.recipe).batches(encoded, seed=1, epoch=0, rank=0, world=1, fixed_shapes=False)
    count = Counter(int(row) for batch in batches for row in batch.rows)
    assert count == dict.fromkeys(range(40 + 3 * 10), 1)
    for batch in batches:
        for row, source in zip(batch.rows, batch.source, strict=True):
            assert source[0] == (french if row < 40 else other)[0]
    assert EncodedCorpus.load(made.data / "valid")[0][0][0] == french[0]
    assert "<2fr>" not in (made.data / "tokenizer.json").read_text(encoding="utf-8").partition('"model"')[2]
    assert run("translate", "--model", "run", "<2xx> the cat sleeps .")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.weights=[2]"], "data.weights (command line): is no key any more: name a corpus as often"),
        (['data.tags=["a", "b"]'], "2 tags for 1 corpus"),
        (['data.tags=["a b"]'], "data.tags"),
        (["tokenizer.dropout=0.1"], "is no key any more: begin a new run without it"),
        (['data.tags=["<2fr>"]', "tokenizer.kind=word", "tokenizer.slots=4"], "data.tags and tokenizer.slots"),
    ],
)
def test_what_does_not_go_together_is_refused(folder: Path, settings: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        load_recipe(folder / "mine.toml", settings)


def test_a_tag_that_a_loaded_vocabulary_lacks_is_refused(folder: Path) -> None:
    run("train", "mine.toml", "training.updates=1", "--out", "run")
    with pytest.raises(ValueError, match="'<2fr>' is not one token"):
        run("train", "mine.toml", "tokenizer.load=run/model", 'data.tags=["<2fr>"]', "--out", "second")


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
    assert [int(encoded[i][0][0]) == tag for i in range(len(encoded))] == [row >= 40 for row in encoded.rows.tolist()]
