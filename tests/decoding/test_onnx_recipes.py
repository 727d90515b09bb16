"""Every recipe and every model that ships can be exported to ONNX, and the graphs compute what torch computes."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.decoding import load_model_and_tokenizers
from regard.decoding.onnx import export_onnx
from regard.models import Classifier, EncoderDecoder, MultiDecoder
from tests.support.onnx_graphs import WORDS, check, export_graphs, varied

pytest.importorskip("onnxruntime", reason="needs the extra `dev`")
pytest.importorskip("pydantic", reason="needs the extra `train`")

from regard.training import recipe_files

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {"width": 16, "embedding": 16, "hidden": 24, "heads": 4, "layers": 2, "size": 64}
TAGS = [5, 9]


def small(part: Any) -> Any:
    """A part of a recipe with the same options and small sizes; annotations and decoders are equally wide."""
    values = {each.name: getattr(part, each.name) for each in fields(part)}
    sizes = {name: min(size, values[name]) for name, size in SMALL.items() if values.get(name)}
    if values.get("bidirectional"):
        sizes["width"] = SMALL["width"] // 2
    rates = {name: 0.0 for name in values if name.endswith("dropout")}
    return replace(part, **sizes, **rates)


def configuration(recipe: Any) -> Any:
    """The configuration of the model that a recipe describes, with small parts and vocabularies."""
    words = WORDS if recipe.encoder.reads == "text" else 0
    if recipe.head is not None:
        return replace(recipe.classifier(words, 3), encoder=small(recipe.encoder), head=small(recipe.head), longest=32)
    tags = TAGS[: len(recipe.decoders)]
    slots = {"slots": 20} if recipe.tokenizer.slots else {}
    parts = {"encoder": small(recipe.encoder), "decoder": small(recipe.decoder)}
    return replace(recipe.writer(words, WORDS, tags), **parts, **slots, longest=32)


@cache
def configurations() -> dict[str, Any]:
    """One for each different system among the recipes, by the name of the first recipe."""
    found: dict[str, Any] = {}
    for name in recipe_files.shipped_recipes():
        config = configuration(recipe_files.load_recipe(name))
        if config not in found.values():
            found[name] = config
    return found


def model_of(config: Any) -> Any:
    torch.manual_seed(0)
    config.check()
    if not hasattr(config, "decoder"):
        return varied(Classifier(config))
    return varied((MultiDecoder if getattr(config, "tags", []) else EncoderDecoder)(config))


@pytest.mark.parametrize("name", configurations())
def test_every_recipe(name: str, tmp_path: Path) -> None:
    model = model_of(configurations()[name])
    check(model, export_graphs(model, tmp_path / "onnx"))


@pytest.mark.parametrize("name", recipe_files.architectures())
def test_every_architecture(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'base = ["{name}"]\n[data]\nkind = "files"\ntrain = ["a.csv"]\nvalid = []\nhold_out = 10\n')
    config = configuration(recipe_files.load_recipe(file))
    model = model_of(config)
    check(model, export_graphs(model, tmp_path / "onnx"))


@pytest.mark.parametrize("name", load_model_and_tokenizers.shipped())
def test_every_model_that_ships(name: str, tmp_path: Path) -> None:
    loaded = load_model_and_tokenizers.load(name)
    check(loaded.model.eval(), export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx"))
