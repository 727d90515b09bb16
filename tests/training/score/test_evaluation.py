"""The columns of a file that a run is evaluated on, and the rows it cannot be evaluated on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.data import Pair
from regard.data.corpora import tones
from regard.decoding import load_model_and_tokenizers
from tests.support.small_translators import save_run

pytest.importorskip("pydantic")

from regard.training.recipe import recipe_loader
from regard.training.score.evaluation import default_columns, evaluate_task, pairs_of_file, parse_columns
from regard.training.tasks.task import recipe_task

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("columns", "header", "expected"), [
    ('["en", "fr"]', "fr,en", ("en", "fr")),
    ('["text, en", "text, fr"]', '"text, fr","text, en"', ("text, en", "text, fr")),  # a comma is part of the name
    ('["2", "1"]', "1,2", ("2", "1")),  # a name, though it is a number
    ('["en", "fr", "links"]', "fr,en", ("en", "fr")),  # no gold links in this file
    ('["en", 1]', "fr,en", (0, 1)),
    ("[1, 0]", "fr,en", (1, 0)),
    ("[1, 0, 2]", "fr,en", (1, 0)),  # no gold links in this file
    ("[1, 0, 2]", "fr,en,licence", (1, 0)),  # the third column holds no links
    ("[1, 0, 2]", "fr,en,0-0", (1, 0, 2)),
    ("[0, 2]", "fr,en", (0, 1)),
    ("[-1, 0]", "fr,en", (0, 1)),
    ("[1]", "fr,en", (0, 1)),
    ("[]", "fr,en", (0, 1)),
    ('["en", "fr"]', "target,source", (0, 1)),
    ('"en"', "fr,en", (0, 1)),  # no list
])  # fmt: skip
def test_columns_of_a_run(columns: str, header: str, expected: tuple[int | str, ...], tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    (run / "recipe.toml").write_text(f"[data]\ncolumns = {columns}\n", encoding="utf-8")
    file = tmp_path / "pairs.csv"
    file.write_text(f"{header}\nle chat,the cat{',0-0' * (header.count(',') == 2)}\n", encoding="utf-8")
    found = default_columns(load_model_and_tokenizers.load(run), file)
    assert found == expected
    if found != (0, 1):
        pairs = pairs_of_file(file, "translate", found)
        assert (pairs[-1].source, pairs[-1].target) == ("the cat", "le chat")


def test_a_recipe_that_cannot_be_read(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    loaded = load_model_and_tokenizers.load(run)
    (run / "recipe.toml").write_text("[data\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"recipe\.toml is not a recipe: .*--columns"):
        default_columns(loaded, tmp_path / "pairs.csv")


def test_a_sound_that_is_too_long_is_named_by_its_frames() -> None:
    tokenizers = load_model_and_tokenizers.load("digits-cnn").tokenizers
    pairs = [Pair(next(tones.pairs(1)).source, tokenizers.target.names[0], where="sounds.tsv:1")]
    recipe = recipe_loader.load_recipe("cnn-digits", ["data.longest=3"])
    message = r"sounds\.tsv:1: the sound has \d+ frames of 10 ms, and the model was trained on at most 3 \(data"
    with pytest.raises(ValueError, match=message):
        evaluate_task(recipe_task(recipe), None, tokenizers, pairs)


def test_columns_of_the_command_line() -> None:
    assert parse_columns(None) == (0, 1)
    assert parse_columns("1, 0,links") == (1, 0, "links")
