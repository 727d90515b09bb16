"""Mistakes in the settings of `fit(model, …)` read as those of a recipe do, and nothing is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from regard.training.own_model import ModelRecipe
from regard.training.recipe_sections import RecipeError

if TYPE_CHECKING:
    from pathlib import Path

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"lr": 3}, "lr: unknown key; regard calls it rate"),
    ({"learning_rate": 3}, "learning_rate: unknown key; regard calls it rate"),
    ({"weight_decay": 3}, "weight_decay: unknown key; regard calls it decay"),
    ({"max_steps": 3}, "max_steps: unknown key; regard calls it updates"),
    ({"epochs": 3}, "epochs: unknown key; regard calls it updates, steps of the optimizer: epochs × batches of an"),
    ({"batch_size": 3}, "batch_size: unknown key; regard calls it tokens, which counts tokens, not rows; fit(model"),
    ({"updtes": 3}, "updtes: unknown key; did you mean updates?"),
    ({"updates": "many"}, "updates: is 'many'; it should be a valid integer"),
    ({"rate": -1}, "rate: is -1; it should be greater than 0"),
    ({"betas": (0.9, 0.99)}, "betas: is (0.9, 0.99); it should be a list, such as [0.9, 0.99]"),
    ({"seed": -1}, "seed: is -1; it should be at least 0"),
]


@pytest.mark.parametrize(("given", "line"), MISTAKES)
def test_a_mistake_is_named(given: dict[str, Any], line: str, tmp_path: Path) -> None:
    settings = dict(given)
    with pytest.raises(RecipeError) as caught:
        ModelRecipe.of_call(tmp_path / "run", settings.pop("seed", 1), settings, [])
    title, *lines = str(caught.value).split("\n  ")
    assert title == "the call of fit(model, …) has 1 error:"
    assert len(lines) == 1
    assert lines[0].startswith(line)
    assert "https" not in lines[0]


def test_a_file_with_other_settings_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "x"\n[training]\nrate = "fast"\n')
    message = r"began: it has 1 error: training\.rate: is 'fast'; it should be a valid number$"
    with pytest.raises(ValueError, match=message):
        ModelRecipe.open(tmp_path)
    (tmp_path / "recipe.toml").write_text("name =")
    with pytest.raises(ValueError, match="began: Invalid value"):
        ModelRecipe.open(tmp_path)
