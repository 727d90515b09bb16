"""Mistakes in a recipe: each is named by its key, its place and what it should be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from regard.models import ENCODERS
from regard.training import recipe_files
from regard.training.recipe_sections import (
    RecipeError,
)

if TYPE_CHECKING:
    from pathlib import Path

MISTAKES = {
    "training.updtes=3": "training.updtes (command line): unknown key; did you mean updates?",
    "encoder.cel=gru": "encoder.cel (command line): unknown key; did you mean cell?",
    "trainign.updates=3": "trainign: unknown key; did you mean training?",
    "data.frobnicate=3": "data.frobnicate (command line): unknown key; known are columns, ",
    "training.rate=fast": "training.rate (command line): is 'fast'; it should be a valid number",
    "training.updates=0": "training.updates (command line): is 0; it should be at least 1",
    "training.updates=1.5": "training.updates (command line): is 1.5; it should be a valid integer",
    "data.train=a.tsv": "data.train (command line): is 'a.tsv'; it should be a list, such as 'data.train=[\"a.tsv\"]'",
    "training.freeze=[a.b]": (
        "training.freeze (command line): is '[a.b]'; it should be a list, such as 'training.freeze=[\"a.b\"]'"
    ),
    "training.freeze=[a.b,c]": (
        "training.freeze (command line): is '[a.b,c]'; it should be a list, such as 'training.freeze=[\"a.b\", \"c\"]'"
    ),
    "data.train=3": ("data.train (command line): is 3; it should be a list, such as 'data.train=[3]'"),
    "data.columns=3": "data.columns (command line): is 3; it should be a list, such as 'data.columns=[3]'",
    "training.betas=x": (
        "training.betas (command line): is 'x'; it should be a list, such as 'training.betas=[\"x\"]'"
    ),
    "training.rate=nan": "training.rate (command line): is ",
    'encoder.width="256"': "encoder.width (command line): is '256'; it should be a valid integer",
    "encoder.cell=rnn": "encoder.cell (command line): is 'rnn'; it should be 'gru' or 'lstm'",
    "encoder.kind=nn": "encoder: kind is 'nn'; known kinds are " + ", ".join(map(repr, ENCODERS)),
    "data.kind=film": "data: kind is 'film'; known kinds are 'files', 'phrasebook'",
    "encoder.dropout=1.0": "encoder: dropout is 1.0; it must be a number ≥ 0 and < 1",
    "decoder.width=0": "decoder: width is 0; it must be a whole number ≥ 1",
    "training.schedule=warm": "training.schedule (command line): is 'warm'; it should be 'inverse-square-root', ",
    "data.columns=[0]": "data.columns (command line): has 1 entry; it should have at least 2",
    "data.train=[7]": "data.train.0: is 7; it should be a valid string",
    'name="../x"': "name (command line): is '../x'; it should match",
    "tied=all tokenizer.joint=false": 'recipe: tied = "all" needs tokenizer.joint = true',
    "tied=all encoder.embedding=32": 'recipe: tied = "all" needs embeddings of one width',
    "encoder.kind=transformer encoder.heads=3": "encoder: heads = 3 does not divide width = 256",
    "encoder.kind=transformer encoder.key_heads=3": "encoder: key_heads = 3 does not divide heads = 4",
    "encoder.kind=transformer encoder.width=9 encoder.heads=3": 'encoder: positions = "sinusoidal" needs an even width',
    "decoder.kind=transformer decoder.width=12 decoder.heads=4 decoder.positions=rotary": (
        'decoder: positions = "rotary" needs heads of an even width, and it is 3'
    ),
    "decoder.scope=local-m": 'decoder: scope = "local-m" needs attention = "luong", and it is "bahdanau"',
    "decoder.attention=luong tied=none": 'decoder: readout = "maxout" is not for attention = "luong"',
    "decoder.attention=luong decoder.readout=plain": 'recipe: tied = "decoder" shares the decoder',
    "decoder.energy=dot decoder.width=64": 'recipe: decoder.energy = "dot" needs a decoder as wide as the annotations',
    "decoder.attention=none search.coverage_penalty=0.2": "recipe: search.coverage_penalty needs attention",
    "training.schedule=inverse-square-root training.warmup=0": "recipe: training.schedule = ",
    "training.tokens=255": "recipe: training.tokens = 255 holds no pair of data.longest = 256 tokens",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_a_mistake_is_named(given: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_files.load_recipe("bahdanau-multi30k", given.split(" "))
    title, *lines = str(caught.value).split("\n  ")
    assert title == "recipe bahdanau-multi30k has 1 error:"
    assert len(lines) == 1
    assert lines[0].startswith(MISTAKES[given])


@pytest.mark.parametrize(
    ("recipe", "given", "expected_message"),
    [
        ("mean-opinions", "head.poling=mean", "head.poling (command line): unknown key; did you mean pooling?"),
        ("mean-opinions", "head.pooling=men", "head.pooling (command line): is 'men'; it should be 'mean'"),
        ("soft-scenes", "decoder.warmup=5", 'warmup = 5 needs attention = "hard", and it is "soft"'),
        ("plain-scenes", "search.coverage_penalty=0.2", "search.coverage_penalty needs attention"),
        ("cnn-opinions", "encoder.stride=2 head.pooling=static", "weighs every word: set encoder.stride to 1"),
        ("cnn-tones", "head.pooling=learned encoder.stride=1", "weighs words, and the encoder reads sound"),
    ],
)
def test_a_mistake_of_other_tasks_is_named(recipe: str, given: str, expected_message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(expected_message)):
        recipe_files.load_recipe(recipe, given.split(" "))


def test_mistakes_between_sections_are_reported_together() -> None:
    with pytest.raises(RecipeError, match=r"coverage_penalty .*; training\.tokens = 9 "):
        recipe_files.load_recipe("seq2seq-multi30k", ["search.coverage_penalty=0.2", "training.tokens=9"])


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'base = ["bahdanau-multi30k"]\n\n[training]\nupdates = "many"\nwarmpu = 3\n\n[decoder]\nlayers = true\n'
    )
    with pytest.raises(RecipeError) as caught:
        recipe_files.load_recipe(file, ["search.beams=0"])
    assert str(caught.value).split("\n") == [
        f"recipe {file} has 4 errors:",
        "  decoder.layers (mine.toml:8): is True; it should be a valid integer",
        "  training.updates (mine.toml:4): is 'many'; it should be a valid integer",
        "  training.warmpu (mine.toml:5): unknown key; did you mean warmup?",
        "  search.beams (command line): is 0; it should be at least 1",
    ]


def test_an_override_that_is_none_is_named() -> None:
    with pytest.raises(RecipeError, match=r"2 errors:\n  'fast' is not key=value.*\n  '=3' is not key=value"):
        recipe_files.load_recipe("bahdanau-multi30k", ["fast", "=3"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed =\nx = 1\n", r"is not TOML.*line 1"),
        ('base = "bahdanau"', r"base is 'bahdanau'; it should be a list"),
        ('base = ["mine.toml"]', r"is based on itself"),
        (
            'base = ["bahdanaux"]',
            r"\.toml: base: no recipe is called 'bahdanaux'; did you mean bahdanau\?; `regard rec",
        ),
        ('base = ["../../etc/passwd"]', r"no recipe is called"),
        ('base = ["other.toml"]', r"no recipe file .*other.toml"),
        ("x = '" + "a" * (1 << 20) + "'", r"bytes; that is no recipe"),
        (f"x = {'[' * 10_000}{']' * 10_000}", r"is not TOML"),
    ],
    ids=["syntax", "base", "circle", "unknown", "path", "file", "large", "nested"],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        recipe_files.load_recipe(file)


def test_a_file_of_a_like_name_is_suggested(tmp_path: Path) -> None:
    for name in ("col.toml", "reviews.toml"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"there is no recipe file \S*/nofile\.toml$"):
        recipe_files.load_recipe(tmp_path / "nofile.toml")
    with pytest.raises(ValueError, match=r"there is no recipe file \S*/review\.toml; did you mean reviews\.toml\?$"):
        recipe_files.load_recipe(tmp_path / "review.toml")


def test_odd_files_are_reported_as_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "d.toml").mkdir()
    with pytest.raises(ValueError, match=r"d\.toml is a folder; a recipe is a file"):
        recipe_files.load_recipe(tmp_path / "d.toml")
    (tmp_path / "x.toml").write_text(f'base = ["../{tmp_path.name}/x.toml"]\n', encoding="utf-8")
    with pytest.raises(ValueError, match="is based on itself"):
        recipe_files.load_recipe(tmp_path / "x.toml")


@pytest.mark.parametrize("given", ["seed=2020-01-01", "seed=99999999999999999999999", "data.train=100000000000"])
def test_numbers_that_cannot_be_are_refused_by_key(given: str) -> None:
    with pytest.raises(RecipeError, match=rf"{given.split('=')[0]} \(command line\): is .*; it should be"):
        recipe_files.load_recipe("bahdanau-phrasebook", [given])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            '[data]\nkind = "phrasebook"\n',
            [r'encoder: is missing; write base = \["transformer"\], or another architecture that `regard recipes`'],
        ),
        (
            'base = ["phrasebook"]\n[encoder]\nwidth = 8\n',
            [r"encoder: needs a kind; write base = .* or training\.init"],
        ),
        (
            'base = ["phrasebook"]\n[encoder]\ndropout = 0.1\n[training]\ninit = "phrasebook-bahdanau-en-fr"\n',
            [r"encoder: needs a kind; leave \[encoder\] out: with training\.init it is that of the model"],
        ),
        ('base = ["bahdanau"]\n', [r'data: is missing; write a \[data\] section, or base = \["phrasebook"\]']),
    ],
    ids=["no-base", "no-kind", "init", "no-data"],
)
def test_a_missing_section_comes_with_a_remedy(tmp_path: Path, text: str, lines: list[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        recipe_files.load_recipe(file)
    for line in lines:
        assert re.search(line, str(caught.value)), str(caught.value)
