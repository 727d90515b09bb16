"""Architectures and corpora: what recipes of one's own are based on."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest

from regard.training import recipe_files
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
