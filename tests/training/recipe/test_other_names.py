"""Names of other libraries: each stands for a key that there is, and the table in docs/training.md agrees."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pydantic")

from regard.training.recipe.data_section import FilesData
from regard.training.recipe.other_names import OTHER_NAMES, other_name
from regard.training.recipe.recipe import Recipe
from regard.training.recipe.recipe_errors import RecipeError
from regard.training.recipe.recipe_loader import load_recipe
from regard.training.recipe.recipe_sections import SearchSection, TokenizerSection, TrainingSection
from tests.support.paths import ROOT

SECTIONS = {"training": TrainingSection, "data": FilesData, "tokenizer": TokenizerSection, "search": SearchSection}
OF_PYTORCH = {"load_state_dict", "clip_grad_norm_"}  # functions, which nobody writes as a key


def test_each_stands_for_a_key_and_is_none_itself() -> None:
    for name, (key, _) in OTHER_NAMES.items():
        section, _, own = key.rpartition(".")
        known = SECTIONS[section].model_fields if section else Recipe.model_fields
        assert own in known, key
        assert name not in known, name


def test_the_documented_names_are_known() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").split("## Names of other libraries")[1]
    for row in re.findall(r"^\| (`.*) \|$", text.split("\n## ")[0], re.MULTILINE):
        ours, *others = re.sub(r"\([^()]*\)", "", row).split(" | ")
        keys = re.findall(r"`(?:\w+\.)?(\w+)[^`]*`", ours)
        for name in re.findall(r"`([a-z_]+[a-z0-9_]*)(?::[^`]*)?`", " ".join(others)):
            if name not in OF_PYTORCH and name not in TrainingSection.model_fields and name not in keys:
                assert OTHER_NAMES[name][0].rpartition(".")[2] in keys, name


def test_the_key_is_named_within_its_section_and_whole_elsewhere() -> None:
    assert other_name("lr", ["rate", "updates"]) == "regard calls it rate"
    assert other_name("lr", ["seed"]) == "regard calls it training.rate"
    assert other_name("colour", ["rate"]) is None


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("training.lr=3", "training.lr (command line): unknown key; regard calls it rate"),
        ("lr=3", "lr (command line): unknown key; regard calls it training.rate"),
        ("training.epochs=3", "training.epochs (command line): unknown key; regard calls it updates, steps of the opt"),
        ("training.batch_size=3", "training.batch_size (command line): unknown key; regard calls it tokens, which cou"),
    ],
)
def test_unknown_keys_of_recipes_name_ours(given: str, line: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("bahdanau-phrasebook", [given])
    assert str(caught.value).split("\n  ")[1].startswith(line)
