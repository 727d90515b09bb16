"""Recipes that ship and their parts: every system trains, learns, and shows the weights it used."""

from __future__ import annotations

import csv
import json
import tomllib
from typing import TYPE_CHECKING

import pytest

from regard.commands.train import EMBEDDED
from regard.decoding import model_folders
from regard.models import EncoderDecoder
from regard.seeing import watch
from regard.training import fit, recipe_files
from regard.training.corpora import read
from regard.training.evaluation import evaluate_task
from regard.training.recipe_files import shipped_parts, shipped_recipes
from regard.training.tasks import recipe_task
from tests.support.command_line import run_command

if TYPE_CHECKING:
    from pathlib import Path


BASES = recipe_files.architectures() | recipe_files.corpora()


def test_every_part_without_sizes_for_one_pairing_is_listed() -> None:
    listed = run_command("recipes").stdout.splitlines()
    for name, about in BASES.items():
        assert any(line.split(maxsplit=1) == [name, about] for line in listed)
    assert {"transformer", "bahdanau", "text-cnn", "captioner", "speller"} <= set(recipe_files.architectures())
    assert {"phrasebook", "multi30k", "tatoeba", "opinions", "scenes", "digits"} <= set(recipe_files.corpora())
    unlisted = set(recipe_files.shipped_parts()) - set(BASES)
    assert unlisted == {
        *("tell", "tell-scenes", "tell-photos", "text-classifier", "sound", "sound-classifier", "language-model"),
        *("shakespeare-small", "rnn-lectures", "rnn-phrasebook", "rnn-multi30k", "rnn-tatoeba"),
    }


@pytest.mark.parametrize("name", recipe_files.architectures())
def test_an_architecture_is_printed_as_a_recipe_for_files_of_your_own(name: str, tmp_path: Path) -> None:
    printed = run_command("recipes", name).stdout
    (tmp_path / "mine.toml").write_text(printed)
    recipe = recipe_files.load_recipe(tmp_path / "mine.toml")
    assert recipe.data.kind == "files"
    (tmp_path / "short.toml").write_text(
        f'base = ["{name}"]\nname = "{recipe.name}"\nabout = {json.dumps(recipe.about)}\n'
        '[data]\nkind = "files"\nroot = "."\ntrain = ["train.csv"]\nvalid = ["valid.csv"]\n'
    )
    assert recipe_files.load_recipe(tmp_path / "short.toml") == recipe


@pytest.mark.parametrize("name", recipe_files.corpora())
def test_a_corpus_is_printed_with_its_settings(name: str) -> None:
    printed = run_command("recipes", name).stdout
    settings = tomllib.loads(printed)
    assert settings.pop("about", None) is None
    expected = recipe_files.resolved_settings(name)
    expected.pop("about")
    assert settings == expected


def test_an_architecture_and_a_corpus_are_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = ["phrasebook", "bahdanau"]\n')
    recipe = recipe_files.load_recipe(tmp_path / "mine.toml")
    assert (recipe.data.kind, recipe.encoder.kind, recipe.about) == ("phrasebook", "rnn", "")


NAMES = [name for name, does in recipe_files.recipe_tasks().items() if does.split()[1] in EMBEDDED]
# One context vector, words in no order, or a window of them: nothing to attend with.
WITHOUT = ("seq2seq-", "plain-", "lstm-phrases", "cnn-opinions", "bilstm-")
SMALL = [
    "training.updates=6",
    "search.beams=1",  # a beam reorders a cache in place, and what was seen before can then not be computed again
    "training.warmup=0",
    "training.rate=0.003",
    'training.schedule="constant"',
    "training.tokens=1024",
    "training.validate_every=6",
    "training.save_every=6",
    "training.log_every=1",
    "training.average=1",
    "training.accelerator=cpu",
]


def small(name: str) -> list[str]:
    if recipe_files.recipe_tasks()[name].endswith("phrases"):
        return [*SMALL, "data.sentences=200"]
    return [*SMALL, "data.train=10", "data.valid=6", "data.test=6"]


def test_a_table_makes_a_recipe_of_every_system_and_corpus() -> None:
    recipes = shipped_recipes()
    assert len(recipes) == 89
    assert len(shipped_parts()) == 43
    assert not set(recipes) & set(shipped_parts()), "a base is either"
    assert recipes["luong-dot-multi30k"] == {
        "about": "Luong 2015, dot energy, on Multi30k, English to German",
        "base": ["luong", "rnn-multi30k"],
        "decoder": {"energy": "dot"},
    }
    assert recipes["cnn-sst5"]["encoder"] == {"dropout": 0.3}, "an exception"
    assert recipes["cnn-sst2"] == {
        "about": "Kim 2014, a convolutional classifier, on SST-2, whole sentences",
        "base": ["sst2", "text-cnn"],
    }


def test_resolving_leaves_the_parts_as_they_are() -> None:
    before = recipe_files.load_recipe("cnn-sst5")
    recipe_files.load_recipe("cnn-trec", ["encoder.dropout=0.9", "training.updates=1"])
    assert recipe_files.load_recipe("cnn-sst5") == before


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_and_shows_the_weights_it_used(name: str, tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe(name, small(name))
    run = fit(recipe, tmp_path / "run")
    with run.metrics.open(encoding="utf-8", newline="") as file:
        losses = [float(row["nll"]) for row in csv.DictReader(file) if row["nll"]]
    assert min(losses[3:]) < losses[0], "it learns"

    loaded = model_folders.load(run.folder)
    assert loaded.model.task == recipe.task
    pairs = list(read(recipe.data, "test", recipe.source.kind))[:3]
    with watch(loaded.model) as seen:
        scores, _ = evaluate_task(recipe_task(recipe), loaded.model, loaded.tokenizers, pairs)
    assert scores.values["loss"] > 0
    assert bool(len(seen)) != name.startswith(WITHOUT), "what attends is seen"
    assert seen.faithful is not False, seen
    assert any(call.fidelity().faithful for call in seen) == bool(len(seen)), (
        "and what is shown was measured on the output"
    )


@pytest.fixture(scope="module")
def wmt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny corpus as the Hub stores those of WMT: Parquet files with a column `translation`."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    root = tmp_path_factory.mktemp("data")
    (root / "wmt").mkdir()
    rows = [
        {"en": f"the {a} {b}", "de": f"das {b} {a}"} for a in ("red", "old", "big") for b in ("house", "dog", "sea")
    ]
    for name, first in (("train-00000-of-00002", 0), ("train-00001-of-00002", 0), ("validation-00000-of-00001", 5)):
        parquet.write_table(pyarrow.table({"translation": rows[first:]}), root / "wmt" / f"{name}.parquet")
    return root


def test_transformer_base_is_that_of_the_paper() -> None:
    """Table 3 of Vaswani et al. 2017: N = 6, d_model = 512, d_ff = 2048, h = 8, dropout and smoothing 0.1, 65 · 10⁶."""
    import torch

    recipe = recipe_files.load_recipe("transformer-base")
    for part in (recipe.encoder, recipe.decoder):
        sizes = [getattr(part, name) for name in ("layers", "width", "hidden", "heads", "dropout")]
        assert sizes == [6, 512, 2048, 8, 0.1]
    training = recipe.training
    assert (recipe.tied, training.smoothing, training.schedule) == ("all", 0.1, "inverse-square-root")
    assert (training.warmup, training.betas) == (4000, [0.9, 0.98])
    assert training.rate == pytest.approx((512 * 4000) ** -0.5, rel=0.01)
    with torch.device("meta"):
        counts = [
            sum(parameter.numel() for parameter in EncoderDecoder(recipe.writer(size, size)).parameters())
            for size in (32000, recipe.tokenizer.size)
        ]
    width, hidden = 512, 2048
    attention, feed_forward = 4 * (width * width + width), 2 * width * hidden + hidden + width
    encoder, decoder = attention + feed_forward + 2 * 2 * width, 2 * attention + feed_forward + 3 * 2 * width
    layers = 6 * (encoder + decoder) + 2 * 2 * width  # and a norm at the end of each half
    assert counts == [layers + size * width for size in (32000, 37000)]
    assert counts == [60_524_544, 63_084_544]


def test_transformer_base_streams_parquet(wmt: Path, tmp_path: Path) -> None:
    sizes = [f"{part}.{key}" for part in ("encoder", "decoder") for key in ("width=16", "hidden=32", "layers=1")]
    steps = ["training.updates=4", "training.tokens=128", "training.log_every=1"]
    recipe = recipe_files.load_recipe("transformer-base", [f"data.root={wmt}", "tokenizer.size=60", *sizes, *steps])
    run = fit(recipe, tmp_path / "run")
    with run.metrics.open(encoding="utf-8", newline="") as file:
        losses = [float(row["nll"]) for row in csv.DictReader(file) if row["nll"]]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
