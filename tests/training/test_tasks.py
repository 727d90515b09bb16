"""Training classifiers: `classify` shows what was used; labels; rows held out."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
import torch

import regard
from regard.data import TokenizerPair
from regard.data.corpora import opinions, tones
from regard.decoding import translate
from regard.decoding.classification import classify
from regard.models import load
from regard.training import fit, recipe_files
from regard.training.tasks import recipe_task

if TYPE_CHECKING:
    from pathlib import Path

QUICK = (
    "training.validate_every=30",
    "training.save_every=30",
    "training.average=1",
    "training.warmup=0",
    "training.schedule=constant",
    "training.accelerator=cpu",
    "data.valid=20",
    "data.train=600",
    "data.test=1",
)


def trained(recipe: str, folder: Path, *settings: str, updates: int = 30) -> list[float]:
    """The losses of a short run."""
    fit(recipe_files.load_recipe(recipe, [*QUICK, f"training.updates={updates}", *settings]), folder)
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return [float(line["loss"]) for line in csv.DictReader(file) if line["loss"]]


@pytest.mark.parametrize("system", ["tfidf", "lstm-attention"])
def test_text_classifiers_learn(system: str, tmp_path: Path) -> None:
    losses = trained(f"{system}-opinions", tmp_path / "run", "training.tokens=256")
    assert losses[-1] < 0.97 * losses[0]
    model, sides = load(tmp_path / "run" / "model"), TokenizerPair.load(tmp_path / "run" / "model")
    assert model.static.idf.max() > 2  # counted, in every run, to compare with
    with torch.no_grad(), regard.watch(model) as seen:
        (result,) = classify(model, sides, [next(opinions.pairs(1, split="test")).source], weights=True)
    assert result.label in opinions.LABELS
    assert sum(result.probabilities.values()) == pytest.approx(1)
    shown = seen["pooling"]
    assert shown.fidelity().error < 1e-5
    torch.testing.assert_close(shown.weights.dense()[0, 0], result.weights, atol=1e-6, rtol=1e-4)


def test_a_speller_learns(tmp_path: Path) -> None:
    losses = trained("spell-tones", tmp_path / "run", "data.train=48", "training.tokens=1600", updates=20)
    assert losses[-1] < 0.9 * losses[0]
    model, sides = load(tmp_path / "run" / "model"), TokenizerPair.load(tmp_path / "run" / "model")
    (pair,) = tones.pairs(1)
    with torch.no_grad(), regard.watch(model) as seen:
        (result,) = translate(model, sides, [pair.source], weights=True)
    assert result.weights is not None
    assert result.weights.shape[-1] == 98  # frames of a second
    assert all(call.fidelity().error < 1e-4 for call in seen.calls)


@pytest.mark.parametrize(
    ("recipe", "tag"), [("mean-opinions", "text-classification"), ("cnn-tones", "audio-classification")]
)
def test_a_card_says_what_is_classified(recipe: str, tag: str) -> None:
    read = recipe_files.load_recipe(recipe)
    assert f"pipeline_tag: {tag}\n" in recipe_task(read).model_card("those of the last update", 50.0)


def test_an_unknown_label_is_reported_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("good\tyes\nbad\tno\nfine\tyes\n", encoding="utf-8")
    (tmp_path / "valid.tsv").write_text("good\tyes\nodd\tperhaps\n", encoding="utf-8")
    settings = (
        *('data.kind="files"', f'data.root="{tmp_path}"', 'data.train=["train.tsv"]', 'data.valid=["valid.tsv"]'),
        *("training.accelerator=cpu", "tokenizer.kind=word"),
    )
    with pytest.raises(ValueError, match=r"no label is called 'perhaps'; the training data has no, yes"):
        fit(recipe_files.load_recipe("mean-opinions", settings), tmp_path / "run")


def test_a_label_that_only_the_held_out_row_has_is_reported_as_that(tmp_path: Path) -> None:
    from regard.training.corpora import read

    settings = ('data.kind="files"', f'data.root="{tmp_path}"', 'data.train=["all.tsv"]', "data.valid=[]")
    settings = (*settings, "data.hold_out=10", "training.accelerator=cpu", "tokenizer.kind=word")
    (tmp_path / "all.tsv").write_text("".join(f"w{i}\t{i}\n" for i in range(10)), encoding="utf-8")
    (held_out,) = read(recipe_files.load_recipe("mean-opinions", settings).data, "valid")
    rows = [f"w{i}\t{'odd' if i == held_out.row else 'ab'[i % 2]}\n" for i in range(10)]
    (tmp_path / "all.tsv").write_text("".join(rows), encoding="utf-8")
    with pytest.raises(ValueError, match=r"all\.tsv:\d+: no label is called 'odd'.*data\.hold_out = 10 keeps this row"):
        fit(recipe_files.load_recipe("mean-opinions", settings), tmp_path / "run")


@pytest.mark.parametrize(
    ("rows", "setting", "message"),
    [
        (["good\tyes", "bad\tno", "odd"], "data.hold_out=50", r"data\.hold_out = 50 .* too few rows for one"),
        (["a b c d\tyes", "a b c d\tno"] * 5, "data.longest=3", r"what data\.hold_out = 2 holds out of data\.train"),
    ],
)
def test_what_is_held_out_is_named_as_that(tmp_path: Path, rows: list[str], setting: str, message: str) -> None:
    (tmp_path / "all.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    settings = ('data.kind="files"', f'data.root="{tmp_path}"', 'data.train=["all.tsv"]', "data.valid=[]")
    settings = (*settings, "data.on_bad=skip", "data.hold_out=2", setting, "training.accelerator=cpu")
    if "longest" in setting:  # what is left to train on is short enough
        from regard.training.corpora import read

        out = {pair.row for pair in read(recipe_files.load_recipe("mean-opinions", settings).data, "valid")}
        kept = [row if n in out else row.replace("a b c d", "a") for n, row in enumerate(rows)]
        (tmp_path / "all.tsv").write_text("".join(f"{row}\n" for row in kept), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        fit(recipe_files.load_recipe("mean-opinions", (*settings, "tokenizer.kind=word")), tmp_path / "run")


def test_a_file_of_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "some.tsv").write_text("good\tyes\nbad\tno\n", encoding="utf-8")
    (tmp_path / "none.tsv").touch()
    settings = ('data.kind="files"', f'data.root="{tmp_path}"', 'data.train=["some.tsv"]', 'data.valid=["none.tsv"]')
    with pytest.raises(ValueError, match=r"data\.valid \(none\.tsv\) holds no usable rows"):
        fit(recipe_files.load_recipe("mean-opinions", (*settings, "training.accelerator=cpu")), tmp_path / "run")


@pytest.mark.parametrize("tokenizer", ["tokenizer.kind=word", "tokenizer.kind=bpe"])
def test_a_training_file_of_nothing_is_named(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "some.tsv").write_text("good\tyes\nbad\tno\n", encoding="utf-8")
    (tmp_path / "none.tsv").touch()
    settings = ('data.kind="files"', f'data.root="{tmp_path}"', 'data.train=["none.tsv"]', 'data.valid=["some.tsv"]')
    with pytest.raises(ValueError, match=r"data\.train \(none\.tsv\) holds no usable rows"):
        fit(
            recipe_files.load_recipe("mean-opinions", (*settings, tokenizer, "training.accelerator=cpu")),
            tmp_path / "run",
        )


def test_a_header_taken_for_a_row_and_a_bad_row_are_remarked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["text\tlabel", *(f"word {n}\t{'yes' if n % 2 else 'no'}" for n in range(40)), "odd"]
    (tmp_path / "all.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    settings = ['data.kind="files"', f'data.root="{tmp_path}"', 'data.train=["all.tsv"]', "data.valid=[]"]
    settings += ["data.hold_out=10", "data.on_bad=skip", "data.test=[]", "tokenizer.kind=word"]
    quick = [setting for setting in QUICK if not setting.startswith("data.")]
    settings += [*quick, "training.updates=1", "training.tokens=256"]
    fit(recipe_files.load_recipe("mean-opinions", settings), tmp_path / "by-number")
    shown = capsys.readouterr().out
    assert "looks like a header ('text', 'label')" in shown
    assert shown.count("all.tsv:42: the line has 1 column") == 1
    assert shown.count("1 bad row skipped") == 1
    fit(recipe_files.load_recipe("mean-opinions", [*settings, 'data.columns=["text", "label"]']), tmp_path / "by-name")
    assert "looks like a header" not in capsys.readouterr().out


def test_one_row_of_ten_can_validate_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    from regard.training.corpora import read

    # Two labels in turn, as whole columns of some files are; the second half is of another kind.
    rows = [f"w{i}\t{'ab'[i % 2]}\n" for i in range(1000)]
    (tmp_path / "all.tsv").write_text("".join(rows), encoding="utf-8")
    settings = ('data.kind="files"', f'data.root="{tmp_path}"', 'data.train=["all.tsv"]', "data.valid=[]")
    data = recipe_files.load_recipe("mean-opinions", (*settings, "data.hold_out=10")).data
    valid, train = (list(read(data, split)) for split in ("valid", "train"))
    assert (len(valid), len(train)) == (100, 900)
    assert {pair.source for pair in valid} | {pair.source for pair in train} == {f"w{i}" for i in range(1000)}
    assert [pair.source for pair in valid] == [pair.source for pair in read(data, "valid")]
    assert sum(pair.row < 500 for pair in valid) == 50  # as much of each part of the file …
    assert 35 < sum(pair.target == "a" for pair in valid) < 65  # … and of what alternates (every tenth: 100)
    with pytest.raises(ValueError, match="name files to validate with, or hold out one row of 10"):
        recipe_files.load_recipe("mean-opinions", settings)
    (tmp_path / "all.tsv").write_text("".join(rows[:3]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"data\.hold_out = 10 .* too few rows for one: lower it"):
        fit(
            recipe_files.load_recipe("mean-opinions", (*settings, "data.hold_out=10", "data.test=[]")),
            tmp_path / "run",
        )


def test_the_tables_say_honestly_whether_attention_is_better() -> None:
    from benchmarks.classification_results import Experiment, experiments, section

    names = [one.name for one in experiments()]
    assert len(set(names)) == len(names)
    one = Experiment("sst2", "bilstm-sst2 head.pooling=mean", (), 3)
    assert one.name == "sst2-bilstm-sst2-head-pooling-mean-3"
    assert one.training == ["bilstm-sst2", "head.pooling=mean", "seed=3"]
    scores = {"bilstm-sst2 head.pooling=mean": (80, 81, 82), "lstm-attention-sst2": (85, 86, 87)}
    scores |= {"lstmn-sst2": (80, 81, 82), "lstmn-sst2 head.pooling=attention": (80, 82, 82.5)}
    scores |= {"transformer-sst2 head.pooling=mean": (70, 70), "transformer-sst2": (80, 80)}
    where = {"loss": "0.5", "day": "today", "machine": "here", "versions": "torch"}
    rows = [
        {"table": "sst2", "recipe": recipe, "seed": str(seed), "score": str(score), **where}
        for recipe, several in scores.items()
        for seed, score in enumerate(several, 1)
    ]
    page = "\n".join(section(rows))
    assert "| `lstm-attention-sst2` | 86.00 ± 1.00 |" in page
    assert "`lstm-attention-sst2` over `bilstm-sst2 head.pooling=mean`: +5.00, beyond the spread." in page
    assert "`lstmn-sst2 head.pooling=attention` over `lstmn-sst2`: +0.50, within the spread." in page
    assert "`transformer-sst2` over" not in page, "two seeds tell nothing"
