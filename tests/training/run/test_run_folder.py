"""The folder of a run: what an extension keeps, and what --force removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.training.recipe import recipe_loader
from regard.training.run.run_folder import Run

if TYPE_CHECKING:
    from pathlib import Path


def test_an_extension_replaces_no_earlier_model(tmp_path: Path) -> None:
    recipe = recipe_loader.load_recipe("bahdanau-phrasebook")
    run = Run.create(recipe, tmp_path / "run")
    for content in ("first", "second", "third"):
        run.model.mkdir()
        (run.model / "weights").write_text(content)
        run.extend(recipe, 10)
    kept = {path.name: (path / "weights").read_text() for path in run.folder.glob("model*")}
    assert kept == {"model-10": "first", "model-10-2": "second", "model-10-3": "third"}


def test_force_removes_what_a_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    recipe = recipe_loader.load_recipe("bahdanau-phrasebook")
    run = Run.create(recipe, tmp_path / "run")
    others = ["model-best", "model-10-copy", "model-10-2-3", "model-", "notes"]
    for name in ("model", "data", "tensorboard", "wandb", "mlflow", "model-10", "model-10-2", *others):
        (run.folder / name).mkdir()
        (run.folder / name / "file").write_text(name)
    Run.create(recipe, run.folder, force=True)
    left = {path.name for path in run.folder.iterdir()}
    assert left == {*others, "checkpoints", "recipe.toml"}
