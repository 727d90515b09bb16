"""Parts from another package: trained, saved, loaded, and never imported unless the user allows it."""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

pytest.importorskip("pydantic")

from regard import plugins
from regard.commands import app
from regard.data import TokenizerPair
from regard.models import Classifier, load
from regard.training import fit, recipe_files
from regard.training.recipe_sections import OpinionsData

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = '''
from dataclasses import dataclass
from torch import nn
from regard.data import Pair
from regard.data.tokenizer import Tokenizer
from regard.layers.pooling import MeanPooling
from regard.models import Annotations, Encoder, EncoderConfig, HeadConfig
from regard.models.configurations import masked_mean, zero_padding
from regard.training.recipe_sections import PluginData
from regard.training.tasks import ClassifyTask


@dataclass(frozen=True)
class Neighbours(EncoderConfig):
    """Each word beside the one before it."""

    kind: str = "my_parts.parts:Neighbours"
    reads: str = "text"
    width: int = 8

    def build(self, vocabulary, longest):
        return NeighboursEncoder(self, vocabulary)


class NeighboursEncoder(Encoder):
    def __init__(self, config, vocabulary):
        super().__init__()
        self.width = config.width
        self.embedding = nn.Embedding(vocabulary, config.width)

    def forward(self, source, lengths):
        x = self.embedding(source)
        x = zero_padding(x + nn.functional.pad(x, (0, 0, 1, -1)), lengths)
        return Annotations(x, lengths, masked_mean(x, lengths))


@dataclass(frozen=True)
class Halved(HeadConfig):
    kind: str = "my_parts.parts:Halved"

    def build(self, width, words, static):
        return HalfMean()


class HalfMean(MeanPooling):
    def forward(self, *arguments, **options):
        z, w = super().forward(*arguments, **options)
        return z / 2, w


class Words(Tokenizer):
    plugin = "my_parts.parts:Words"

    @classmethod
    def train(cls, kind, size, texts, *, lowercase=False, punctuation=False):
        return cls(Tokenizer.train("word", size, texts, lowercase=True)._backend)


class Errors(ClassifyTask):
    kind = "my_parts.parts:Errors"
    measure = "errors"

    def score(self, answers, pairs, nll):
        return -float(sum(answer != pair.target for answer, pair in zip(answers, pairs)))


class Parity(PluginData):
    kind: str = "my_parts.parts:Parity"
    rows: int = 40

    def pairs(self, split):
        for row in range(self.rows):
            yield Pair(" ".join(["Odd", "even"][n % 2] for n in range(row % 7 + 1)), "ab"[row % 2], row)
'''
RECIPE = """
task = "my_parts.parts:Errors"
[data]
kind = "my_parts.parts:Parity"
rows = 30
[tokenizer]
kind = "my_parts.parts:Words"
size = 50
[encoder]
kind = "my_parts.parts:Neighbours"
width = 12
[head]
kind = "my_parts.parts:Halved"
[training]
updates = 3
accelerator = "cpu"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that can be imported, and a recipe that names its parts."""
    (tmp_path / "site" / "my_parts").mkdir(parents=True)
    (tmp_path / "site" / "my_parts" / "__init__.py").write_text("")
    (tmp_path / "site" / "my_parts" / "parts.py").write_text(PACKAGE)
    (tmp_path / "mine.toml").write_text(RECIPE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(plugins, "_allowed", set())
    yield tmp_path
    for name in ("my_parts", "my_parts.parts"):
        sys.modules.pop(name, None)


def test_every_part_is_trained_saved_and_loaded(package: Path) -> None:
    run = package / "run"
    train = ["--plugins", "my_parts", "train", str(package / "mine.toml"), "--out", str(run)]
    done = CliRunner().invoke(app, train, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "errors" in done.output
    assert "valid_errors" in (run / "metrics.csv").read_text().splitlines()[0]
    config = json.loads((run / "model" / "config.json").read_text())
    assert (config["encoder"]["kind"], config["encoder"]["width"]) == ("my_parts.parts:Neighbours", 12)
    assert config["head"]["kind"] == "my_parts.parts:Halved"
    model, tokenizers = load(run / "model"), TokenizerPair.load(run / "model")
    assert type(model.encoder).__name__ == "NeighboursEncoder"
    assert type(tokenizers.source).__name__ == "Words"
    assert isinstance(model, Classifier)
    assert type(model.pooling).__name__ == "HalfMean"
    used = CliRunner().invoke(app, ["classify", "--model", str(run), "odd even"], catch_exceptions=False)
    assert used.exit_code == 0, used.output

    for name in ("my_parts", "my_parts.parts"):  # another process, which has not imported them
        sys.modules.pop(name)
    plugins._allowed.clear()
    refusal = "'my_parts.parts:Halved', code of the package my_parts. It runs only if you allow it"
    with pytest.raises(ValueError, match=refusal):
        load(run / "model")
    with pytest.raises(ValueError, match=r"'my_parts\.parts:Words', code of the package my_parts"):
        TokenizerPair.load(run / "model")
    assert "my_parts" not in sys.modules


def test_a_recipe_alone_imports_nothing(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"code of the package my_parts\. It runs only if you allow it"):
        recipe_files.load_recipe(package / "mine.toml")
    assert "my_parts" not in sys.modules
    monkeypatch.setenv("REGARD_PLUGINS", "other, my_parts")
    recipe = recipe_files.load_recipe(package / "mine.toml")
    assert (recipe.base_task, recipe.encoder.width) == ("classify", 12)


def test_what_is_imported_already_needs_no_permission(package: Path) -> None:
    import my_parts.parts  # type: ignore[import-not-found]

    recipe = recipe_files.load_recipe(package / "mine.toml")
    assert type(recipe.encoder) is my_parts.parts.Neighbours


def add_entry_points(package: Path) -> None:
    info = package / "site" / "my_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_parts\nVersion: 1.0\n")
    groups = {"encoders": "Neighbours", "heads": "Halved", "tokenizers": "Words", "tasks": "Errors", "data": "Parity"}
    points = [f"[regard.{group}]\n{name.lower()} = my_parts.parts:{name}\n" for group, name in groups.items()]
    (info / "entry_points.txt").write_text("".join(points))
    importlib.invalidate_caches()
    plugins.allow_plugins("my_parts")


@pytest.mark.parametrize("declared", ["neighbours", "my_parts.parts:Neighbours"])
@pytest.mark.parametrize("named", ["neighbours", "my_parts.parts:Neighbours"])
def test_an_entry_point_names_a_plugin(package: Path, declared: str, named: str) -> None:
    """A recipe may have the name or the path; a model that is saved has what the class says of itself."""
    parts = package / "site" / "my_parts" / "parts.py"
    parts.write_text(PACKAGE.replace('kind: str = "my_parts.parts:Neighbours"', f'kind: str = "{declared}"'))
    add_entry_points(package)
    (package / "mine.toml").write_text(RECIPE.replace('kind = "my_parts.parts:Neighbours"', f'kind = "{named}"'))
    assert recipe_files.load_recipe(package / "mine.toml").encoder.kind == declared


def test_a_model_of_short_names_is_loaded_without_them(package: Path) -> None:
    add_entry_points(package)
    short = re.sub(r"my_parts\.parts:(\w+)", lambda match: match[1].lower(), RECIPE)
    (package / "mine.toml").write_text(short)
    run = package / "run"
    done = CliRunner().invoke(app, ["train", str(package / "mine.toml"), "--out", str(run)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (package / "site" / "my_parts-1.0.dist-info" / "entry_points.txt").write_text("")
    importlib.invalidate_caches()
    assert type(load(run / "model").encoder).__name__ == "NeighboursEncoder"
    assert type(TokenizerPair.load(run / "model").source).__name__ == "Words"


def test_a_class_of_another_name_is_refused(package: Path) -> None:
    parts = package / "site" / "my_parts" / "parts.py"
    parts.write_text(PACKAGE.replace('kind: str = "my_parts.parts:Neighbours"', 'kind: str = "my_parts.parts:Old"'))
    plugins.allow_plugins("my_parts")
    with pytest.raises(ValueError, match=r"Neighbours\.kind is 'my_parts\.parts:Old': make it 'my_parts"):
        recipe_files.load_recipe(package / "mine.toml")


def test_an_encoder_that_returns_a_tensor_is_told_what_to_return(package: Path) -> None:
    parts = package / "site" / "my_parts" / "parts.py"
    parts.write_text(PACKAGE.replace("return Annotations(x, lengths, masked_mean(x, lengths))", "return x"))
    plugins.allow_plugins("my_parts")
    expected = r"NeighboursEncoder.forward returned a Tensor; forward of an encoder returns .*Annotations\("
    with pytest.raises(TypeError, match=expected):
        fit(recipe_files.load_recipe(package / "mine.toml"), package / "run")


def test_an_entry_point_cannot_replace_a_kind_of_ours(package: Path) -> None:
    parts = package / "site" / "my_parts" / "parts.py"
    parts.write_text(PACKAGE.replace('kind: str = "my_parts.parts:Parity"', 'kind: str = "opinions"'))
    info = package / "site" / "my_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[regard.data]\nopinions = my_parts.parts:Parity\n")
    importlib.invalidate_caches()
    plugins.allow_plugins("my_parts")
    assert plugins.plugin_path("opinions", "data") == "my_parts.parts:Parity"
    assert type(recipe_files.load_recipe("transformer-opinions").data) is OpinionsData


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("encoder.kind=nowhere.parts:Conformer", "a plug-in of the package nowhere, which is not installed here"),
        ("encoder.kind=os:system", "os has no subclass system of EncoderConfig"),
        ("encoder.kind=conformer", "kind is 'conformer'; known kinds are .*; if it is a plug-in, install the package"),
        ("data.kind=corpus", "kind is 'corpus'; known kinds are .*; if it is a plug-in, install the package"),
        ("tokenizer.kind=pieces", "is 'pieces'; it should be 'bpe', .* or a plug-in that is installed"),
        ("encoder.windth=3", r"encoder\.windth \(command line\): unknown key; did you mean width\?"),
        ("encoder.foo=3", r"encoder\.foo \(command line\): unknown key; known are kind, reads, width$"),
        ("head.foo=3", r"head\.foo \(command line\): unknown key; known are dropout, hidden, idf, kind, pooling$"),
        ("encoder.width=0", "encoder: width is 0; it must be a whole number"),
        ("task=translat", "is 'translat'; it should be 'translate'"),
        ("data.colour=red", r"data\.colour \(command line\): unknown key; known are kind, longest, on_bad, rows, tok"),
        ("data.rows=many", r"data\.rows \(command line\): is 'many'; it should be a valid integer"),
    ],
)
def test_errors_name_the_key(package: Path, setting: str, message: str) -> None:
    plugins.allow_plugins("my_parts")
    with pytest.raises(ValueError, match=message):
        recipe_files.load_recipe(package / "mine.toml", [setting])


def test_a_package_in_the_working_directory_is_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_me").mkdir()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])  # "" is the working directory
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"the working directory holds beside_me, so PYTHONPATH=\. is enough"):
        recipe_files.load_recipe(package / "mine.toml", ["encoder.kind=beside_me.parts:Conformer"])
