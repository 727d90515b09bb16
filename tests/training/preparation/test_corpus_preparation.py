"""Data of a run: prepared once for all runs, the same with and without the cache."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("pydantic")

from typing import TYPE_CHECKING, Any

from regard.checksums import sha256
from regard.data import EncodedCorpus, TokenizerPair
from regard.training import Run
from regard.training.preparation import corpus_preparation
from regard.training.preparation.corpus_preparation import CorpusPreparation
from regard.training.recipe.recipe_loader import load_recipe
from regard.training.tasks.task import recipe_task
from tests.support.tiny_training import recipe_file

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_second_run_takes_everything_from_the_cache(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = prepare(file, tmp_path / "first")
    monkeypatch.setattr(TokenizerPair, "train", lambda *_, **__: pytest.fail("the vocabulary is in the cache"))
    monkeypatch.setattr(EncodedCorpus, "build_chunks", lambda *_, **__: pytest.fail("the corpora are in the cache"))
    second, lines = prepare(file, tmp_path / "second", "seed=7")
    assert content(first) == content(second)
    assert any(line.startswith("train: 300 pairs") for line in lines)


def test_one_that_cannot_be_written_is_said_and_changes_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = prepare(file, tmp_path / "first")
    (tmp_path / "a file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "a file" / "cache"))
    second, lines = prepare(file, tmp_path / "second")
    assert content(first) == content(second)
    assert any("cannot be written" in line for line in lines)
    assert sorted(path.name for path in second.folder.iterdir() if "cache" in path.name) == []


def test_a_vocabulary_is_learned_from_a_sample_of_a_large_corpus(file: Path, tmp_path: Path) -> None:
    every, lines = prepare(file, tmp_path / "all", "tokenizer.kind=bpe")
    same, _ = prepare(file, tmp_path / "same", "tokenizer.kind=bpe", "tokenizer.sample=300")
    assert content(every) == content(same)
    assert not any("tokenizer.sample" in line for line in lines)
    sampled, lines = prepare(file, tmp_path / "few", "tokenizer.kind=bpe", "tokenizer.sample=2")
    assert "it is learned from 2 of 300 rows (tokenizer.sample)" in lines
    assert len(TokenizerPair.load(sampled.data).source) < len(TokenizerPair.load(every.data).source)


def test_what_was_prepared_before_there_was_a_cache_is_prepared_again_alike(file: Path, tmp_path: Path) -> None:
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
    texts = (run.data / corpus_preparation.VALID_PAIRS).read_text(encoding="utf-8").splitlines()
    assert len(texts) == len(EncodedCorpus.load(run.data / "valid")) == 12
    assert os.stat(run.data / "train" / "target.bin").st_nlink == 2, "a link to the file in the cache"


def test_a_vocabulary_of_a_file_that_changed_meanwhile_is_not_kept(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, train = tmp_path / "train.tsv", TokenizerPair.train
    former = corpus.read_text(encoding="utf-8")

    def changing(*values: Any, **settings: Any) -> TokenizerPair:
        corpus.write_text("other words\tothers\n" * 20, encoding="utf-8")
        return train(*values, **settings)

    with monkeypatch.context() as changed:
        changed.setattr(TokenizerPair, "train", changing)
        with pytest.raises(ValueError, match=r"train\.tsv changed while it was read"):
            prepare(file, tmp_path / "first")
    corpus.write_text(former, encoding="utf-8")
    second, _ = prepare(file, tmp_path / "second")
    source = TokenizerPair.load(second.data).source
    assert source.decode(source.encode("ba be")) == "ba be"


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
