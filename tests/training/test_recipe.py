"""Recipes: what they inherit, what may be laid over them, and every mistake a recipe can have."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from regard.models import (
    ENCODERS,
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerEncoderConfig,
)
from regard.training import recipe_files
from regard.training.corpora import folder, read
from regard.training.recipe import Recipe, recipe_toml
from regard.training.recipe_sections import PluginData, Reader, RecipeError
from tests.support.command_line import run_command

if TYPE_CHECKING:
    from pathlib import Path


ARCHITECTURES = (
    *("seq2seq", "bahdanau", "conditional", "luong-dot", "luong-general", "luong-concat", "luong-local"),
    "transformer",
)
NAMES = [f"{architecture}-{data}" for architecture in ARCHITECTURES for data in ("phrasebook", "multi30k", "tatoeba")]


def test_the_canon_ships() -> None:
    assert set(NAMES) <= set(recipe_files.recipe_summaries())
    assert set(recipe_files.recipe_summaries()) == set(recipe_files.recipe_tasks())
    assert all(recipe_files.recipe_summaries().values()), "each says what it is"


@pytest.mark.parametrize("name", recipe_files.recipe_summaries())
def test_a_shipped_recipe_written_in_full_is_the_same_recipe(name: str, tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe(name)
    assert recipe.name == name
    file = tmp_path / "copy.toml"
    file.write_text(recipe_toml(recipe), encoding="utf-8")
    assert recipe_files.load_recipe(file) == recipe
    assert not re.search(r"^base\b", file.read_text(encoding="utf-8"), re.MULTILINE)


def test_any_text_is_written_so_that_it_loads_again(tmp_path: Path) -> None:
    about = 'two\nlines, a "quote", a tab\t, a return\r\nand \x7f \x00 \u2028 \x85 end'
    recipe = replace(recipe_files.load_recipe("bahdanau-multi30k"), about=about)
    file = tmp_path / "bahdanau-multi30k.toml"
    file.write_text(recipe_toml(recipe), encoding="utf-8")
    assert recipe_files.load_recipe(file) == recipe


def test_the_architectures_are_what_their_names_say() -> None:
    def decoder(name: str) -> RecurrentDecoderConfig:
        part = recipe_files.load_recipe(f"{name}-multi30k").decoder
        assert isinstance(part, RecurrentDecoderConfig)
        return part

    assert decoder("seq2seq").attention == "none"
    assert (decoder("bahdanau").attention, decoder("bahdanau").energy) == ("bahdanau", "additive")
    assert (decoder("conditional").attention, decoder("conditional").energy) == ("conditional", "additive")
    assert {name: decoder(f"luong-{name}").energy for name in ("dot", "general", "concat")} == {
        "dot": "dot",
        "general": "general",
        "concat": "concat",
    }
    assert decoder("luong-local").scope == "local-p"
    assert decoder("luong-dot").scope == "global"
    tiny = recipe_files.load_recipe("transformer-multi30k")
    assert isinstance(tiny.encoder, TransformerEncoderConfig)
    assert (tiny.encoder.layers, tiny.encoder.width, tiny.encoder.hidden, tiny.encoder.heads) == (4, 128, 256, 4)


def test_a_recipe_lays_its_own_over_its_bases(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text('base = ["bahdanau-multi30k"]\nseed = 5\n[training]\nrate = 0.5\n')
    (tmp_path / "mine.toml").write_text('base = ["below.toml"]\n[training]\nupdates = 7\n')
    recipe = recipe_files.load_recipe(tmp_path / "mine.toml", ["training.clip=2.5"])
    assert (recipe.name, recipe.seed) == ("mine", 5)
    assert (recipe.training.rate, recipe.training.updates, recipe.training.clip) == (0.5, 7, 2.5)
    assert recipe.data.kind == "files"


def test_overrides_are_toml_or_plain_text() -> None:
    given = [
        "data.columns=[0,2]",
        "training.precision=bf16-mixed",
        "training.graphs=false",
        'data.root="a b"',
        "seed=3",
    ]
    recipe = recipe_files.load_recipe("bahdanau-multi30k", given)
    assert recipe.data.kind == "files"
    assert (recipe.data.columns, recipe.data.root, recipe.seed) == ([0, 2], "a b", 3)
    assert (recipe.training.precision, recipe.training.graphs) == ("bf16-mixed", False)


def test_another_kind_of_section_starts_afresh() -> None:
    """A Transformer encoder under an attentive RNN: the RNN's keys would be mistakes."""
    recipe = recipe_files.load_recipe("bahdanau-multi30k", ["encoder.kind=transformer", "encoder.width=64"])
    assert recipe.encoder == TransformerEncoderConfig(width=64)


SECTIONS_OF_ANOTHER_KIND = {
    "tokenizer": ("bahdanau-phrasebook", ["tokenizer.kind=bpe", "tokenizer.sample=100", "tokenizer.size=300"]),
    "encoder": ("bahdanau-multi30k", ["encoder.kind=transformer", "encoder.width=64", "encoder.layers=2"]),
    "decoder": ("bahdanau-multi30k", ["decoder.kind=transformer", "decoder.width=64", "decoder.layers=2"]),
    "data": ("bahdanau-phrasebook", ["data.kind=files", 'data.train=["a.tsv"]', "data.valid=[]", "data.hold_out=9"]),
    "source": ("cnn-digits", ["source.kind=sound", "source.rate=8000"]),
}


@pytest.mark.parametrize("section", SECTIONS_OF_ANOTHER_KIND)
def test_the_order_of_settings_on_the_command_line_does_not_matter(section: str) -> None:
    """`tokenizer.sample=100 tokenizer.kind=bpe` has a sample too."""
    name, settings = SECTIONS_OF_ANOTHER_KIND[section]
    recipes = [recipe_files.load_recipe(name, order) for order in itertools.permutations(settings)]
    for setting in settings[1:]:
        key, value = setting.removeprefix(f"{section}.").split("=")
        assert getattr(getattr(recipes[0], section), key) == json.loads(value)
    assert all(recipe == recipes[0] for recipe in recipes)


def test_naming_the_default_kind_keeps_the_section(tmp_path: Path) -> None:
    """`[tokenizer]` without a kind is of kind bpe; `tokenizer.kind=bpe` changes nothing."""
    (tmp_path / "mine.toml").write_text('base = ["bahdanau"]\n[data]\nkind = "phrasebook"\n[tokenizer]\nsize = 300\n')
    recipe = recipe_files.load_recipe(tmp_path / "mine.toml", ["tokenizer.kind=bpe"])
    assert recipe == recipe_files.load_recipe(tmp_path / "mine.toml")
    assert recipe.tokenizer.size == 300


def test_what_a_recipe_allows_the_model_can_be() -> None:
    """The recipe's rules are the model's: neither is stricter about how an encoder and a decoder fit together."""
    good = recipe_files.load_recipe("bahdanau-phrasebook", ["decoder.readout=plain"])
    count = {True: 0, False: 0}
    for attention, energy, scope, embedding, tied, bidirectional in itertools.product(
        ("none", "bahdanau", "luong", "conditional"),
        ("dot", "general"),
        ("global", "local-m"),
        (8, 16),
        ("none", "all"),
        (True, False),
    ):
        values = {**good.to_dict(), "tied": tied, "tokenizer": {**good.tokenizer.to_dict(), "joint": True}}
        encoder = {"kind": "rnn", "embedding": 8, "width": 8, "bidirectional": bidirectional}
        decoder = {"kind": "rnn", "attention": attention, "energy": energy, "scope": scope}
        values |= {"encoder": encoder, "decoder": {**decoder, "embedding": embedding, "width": 16}}
        parts = RecurrentEncoderConfig(**encoder), RecurrentDecoderConfig(**values["decoder"])
        try:
            with torch.device("meta"):
                EncoderDecoder(EncoderDecoderConfig(20, 20, *parts, tied=tied))
            fits = True
        except ValueError:
            fits = False
        try:
            Reader().read(Recipe, values, "it")
            allowed = True
        except ValueError:
            allowed = False
        assert allowed == fits, values
        count[fits] += 1
    assert min(count.values()) > 20


@pytest.mark.parametrize("name", recipe_files.architectures())
def test_an_architecture_and_a_data_section_are_a_recipe(name: str, tmp_path: Path) -> None:
    """What `regard recipes` says of them."""
    file = tmp_path / "mine.toml"
    source = "picture" if name == "captioner" else "sound" if name.startswith(("sound", "spell")) else "text"
    file.write_text(f'base = ["{name}"]\n[data]\nkind = "files"\ntrain = ["a.csv"]\nvalid = []\nhold_out = 10\n')
    recipe = recipe_files.load_recipe(file)
    assert (recipe.source.kind, recipe.encoder.reads) == (source, source)
    assert (recipe.head is not None) == (recipe.task == "classify")
    assert recipe.data.longest == (1000 if source == "sound" else 256), "frames of 10 ms, or tokens"


class TestLongest:
    """data.longest counts frames of sounds and tokens of texts, and its default follows the source."""

    @pytest.mark.parametrize("bases", ['["mine.toml", "sound-cnn"]', '["sound-cnn", "mine.toml"]'])
    def test_the_order_of_the_bases_does_not_matter(self, bases: str, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text('[data]\nkind = "files"\ntrain = ["a"]\nvalid = ["b"]\nlongest = 300\n')
        (tmp_path / "top.toml").write_text(f"base = {bases}\n")
        assert recipe_files.load_recipe(tmp_path / "top.toml").data.longest == 300

    @pytest.mark.parametrize(
        ("name", "settings", "expected"),
        [
            ("cnn-digits", [], 1000),
            ("cnn-digits", ["data.kind=tones"], 1000),  # another kind of data, which starts afresh
            ("spell-tones", [], 1000),
            ("cnn-tones", ["data.longest=256"], 256),  # as given, though it is the default of texts
            ("cnn-opinions", [], 256),
            ("soft-scenes", [], 256),
            ("lstm-phrases", ["data.kind=phrases"], 64),
        ],
    )
    def test_the_default_is_that_of_the_source(self, name: str, settings: list[str], expected: int) -> None:
        assert recipe_files.load_recipe(name, settings).data.longest == expected

    def test_data_of_another_package_may_have_its_own(self) -> None:
        class Recordings(PluginData):
            kind: str = "recordings"
            longest: int = 400

        recipe = recipe_files.load_recipe("cnn-tones")
        assert replace(recipe, data=Recordings()).data.longest == 400

    def test_a_run_keeps_the_number_it_was_trained_with(self, tmp_path: Path) -> None:
        recipe = recipe_files.load_recipe("cnn-tones")
        assert "longest = 1000" in recipe_toml(recipe)
        (tmp_path / "recipe.toml").write_text(recipe_toml(recipe).replace("longest = 1000", "longest = 256"))
        assert recipe_files.load_recipe(tmp_path / "recipe.toml").data.longest == 256


class TestRoot:
    def test_is_read_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = recipe_files.load_recipe("bahdanau-multi30k").data
        assert data.kind == "files"
        monkeypatch.setenv("REGARD_DATA", "/somewhere")
        assert str(folder(data.root)) == "/somewhere"
        monkeypatch.delenv("REGARD_DATA")
        assert str(folder(data.root)) == "data"

    def test_a_missing_variable_or_file_says_what_to_set(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = recipe_files.load_recipe("bahdanau-multi30k", ["data.root=${REGARD_NOWHERE}"]).data
        with pytest.raises(ValueError, match="environment has no REGARD_NOWHERE"):
            read(data, "train")
        data = recipe_files.load_recipe("bahdanau-multi30k", [f'data.root="${{REGARD_DATA:-{tmp_path}}}"']).data
        monkeypatch.delenv("REGARD_DATA", raising=False)
        with pytest.raises(ValueError, match=r"data.train: there is no .*environment variable REGARD_DATA"):
            read(data, "train")


def test_the_command_lists_and_prints(tmp_path: Path) -> None:
    listed = run_command("recipes")
    assert listed.returncode == 0, listed.stderr
    *tasks, made, architectures, corpora = listed.stdout.split("\n\n")
    names = [line[2:].split()[0] for task in tasks for line in task.splitlines()[1:]]
    assert sorted(names) == sorted(recipe_files.recipe_summaries()), "each under its task, once"
    assert tasks[0].startswith("Translators\n")
    assert "* bahdanau-phrasebook " in tasks[0], "it needs no data"
    assert "  bahdanau-multi30k " in tasks[0]
    assert made == "* needs no data: regard makes it"
    assert architectures.startswith("Architectures: ")
    assert corpora.startswith("Corpora: ")
    printed = run_command("recipes", "luong-local-tatoeba")
    (tmp_path / "mine.toml").write_text(printed.stdout, encoding="utf-8")
    assert recipe_files.load_recipe(tmp_path / "mine.toml") == recipe_files.load_recipe("luong-local-tatoeba")


@pytest.mark.parametrize("arguments", [["train"], ["train", "bahdanau-multi30k", "--resume", "x"]])
def test_train_needs_a_recipe_or_a_run_and_not_both(arguments: list[str]) -> None:
    done = run_command(*arguments)
    assert done.returncode == 2
    assert "--resume" in done.stderr


def test_without_its_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from regard.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "recipes", "bahdanau-phrasebook"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "regard: this command needs torch; install all that regard can use with: pip install 'regard[all]'\n"
    )


def test_what_a_decoder_reads_is_as_wide_as_its_encoder_makes_it() -> None:
    encoder = ["encoder.kind=cnn", "encoder.width=10", "encoder.windows=[3,4,5]", "decoder.energy=dot"]
    assert recipe_files.load_recipe("bahdanau-phrasebook", [*encoder, "decoder.width=30"]).decoder is not None
    with pytest.raises(RecipeError, match=r"decoder.width is 10, and they are 30 wide"):
        recipe_files.load_recipe("bahdanau-phrasebook", [*encoder, "decoder.width=10"])
    with pytest.raises(RecipeError, match=r"encoder.width = 0 means the number of classes"):
        recipe_files.load_recipe("bahdanau-phrasebook", ["encoder.kind=bag"])


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
    ],
    ids=["syntax", "base", "circle", "unknown", "path", "file"],
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


def test_keys_of_earlier_versions_load_where_they_did_nothing_or_the_run_is_only_looked_at(tmp_path: Path) -> None:
    plain = recipe_files.load_recipe("bahdanau-phrasebook")
    file = tmp_path / "recipe.toml"
    old = recipe_toml(plain).replace("[training]", "[training]\ntensorboard = true\nloggers = []\npart_rates = {}")
    file.write_text(old.replace("[tokenizer]", "[tokenizer]\ndropout = 0.0"))
    assert recipe_files.load_recipe(file) == plain
    file.write_text(old.replace("[tokenizer]", "[tokenizer]\ndropout = 0.1"))
    assert recipe_files.load_recipe(file, finished=True) == plain
    with pytest.raises(RecipeError, match=r"tokenizer\.dropout .*: is no key any more: begin a new run without it"):
        recipe_files.load_recipe(file)
