"""training.ema: the average is what the formula says, it is what is kept, and it survives a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from regard.data import TokenizerPair
from regard.models import EncoderDecoder, load
from regard.training import fit, recipe_files
from regard.training.recipe_sections import RecipeError
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = ["tied=none", "training.save_every=1", "training.average=4", "training.validate_every=2"]


def test_the_average_is_validated_kept_and_resumed(tmp_path: Path) -> None:
    file = recipe_file(tmp_path, rows=60)
    plain = fit(recipe_files.load_recipe(file, [*SETTINGS, "training.updates=4"]), tmp_path / "plain")
    ema = [*SETTINGS, "training.ema=0.15", "training.updates=4"]
    straight = fit(recipe_files.load_recipe(file, ema), tmp_path / "straight")
    assert [row[2] for row in measured(plain.folder)] == [row[2] for row in measured(straight.folder)], "it only reads"

    tokenizers = TokenizerPair.load(plain.model)
    torch.manual_seed(plain.recipe.seed)
    average = EncoderDecoder(plain.recipe.writer(len(tokenizers.source), len(tokenizers.target))).state_dict()
    for n in range(1, 5):
        weights = load_file(plain.checkpoints / f"update-{n:08d}.safetensors")
        decay = min(0.15, (1 + n) / (10 + n))  # 0.15 is less from update 1 on
        kept = load_file(straight.checkpoints / f"update-{n:08d}.safetensors")
        for name, tensor in weights.items():
            average[name] = decay * average[name] + (1 - decay) * tensor
            assert torch.allclose(kept[name], average[name], atol=1e-6), (n, name)

    halves = fit(recipe_files.load_recipe(file, [*ema, "training.updates=2"]), tmp_path / "halves")
    fit(recipe_files.load_recipe(file, ema), halves.folder, resume=True)
    for name, tensor in load(halves.model).state_dict().items():
        assert torch.equal(tensor, load(straight.model).state_dict()[name]), name


def test_sharded_parameters_have_no_average() -> None:
    with pytest.raises(RecipeError, match=r"training\.ema averages whole parameters"):
        recipe_files.load_recipe("bahdanau-phrasebook", ["training.ema=0.9", "training.strategy=fsdp"])
