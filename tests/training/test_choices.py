"""What a recipe or a caller of `fit` chooses: the optimizer, the loss, what is best, and functions of their own."""

from __future__ import annotations

import csv
import math
import sys
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from regard.models import Loss
from regard.models.pretrained import weights_sha256
from regard.training import fit, recipe_files
from regard.training.recipe_sections import RecipeError
from regard.training.tasks import TrainingLoss

if TYPE_CHECKING:
    from pathlib import Path

TINY = ["training.updates=4", "training.validate_every=2", "training.save_every=2", "training.average=1"]


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 1)


def squared(model: Line, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return ((model.map(x) - y) ** 2).mean()


def slope(model: Line) -> float:
    return -abs(model.map.weight.item() - 3)


class Halved(TrainingLoss):
    kind = "my_losses:Halved"

    def __call__(self, model: Any, batch: Any) -> Loss:
        loss = model.loss(batch, smoothing=self.recipe.training.smoothing)
        return Loss(loss.total / 2, loss.nll, loss.tokens)


def measured(run: Path, column: str) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row[column]) for row in csv.DictReader(file) if row[column]]


def given() -> dict[str, Any]:
    torch.manual_seed(0)
    batches = [(each, 3 * each + 1) for each in torch.linspace(-1, 1, 40).reshape(10, 4, 1)]
    settings = {"rate": 0.05, "schedule": "constant", "tensorboard": False, "accelerator": "cpu"}
    return {"train": batches, "valid": batches, "loss": squared, "validate_every": 20, "save_every": 10, **settings}


def test_fit_takes_a_loss_a_metric_an_optimizer_and_callbacks(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, Any]]] = []

    def ends(update: int, figures: dict[str, Any]) -> bool:
        seen.append((update, figures))
        return update >= 40

    sgd = partial(torch.optim.SGD, momentum=0.9)
    model = Line()
    run = fit(model, tmp_path / "run", **given(), updates=90, metric=slope, optimizer=sgd, callbacks=[ends])
    assert measured(run.folder, "valid_slope")[-1] == pytest.approx(slope(model)) == seen[-1][1]["valid_slope"]
    assert [update for update, _ in seen] == [10, 20, 20, 30, 40, 40]
    assert 'optimizer = "given"' in (run.folder / "recipe.toml").read_text()


def test_a_run_goes_on_with_the_optimizer_it_was_given(tmp_path: Path) -> None:
    sgd = partial(torch.optim.SGD, momentum=0.9)
    fit(whole := Line(), tmp_path / "whole", **given(), updates=20, optimizer=sgd)
    torch.manual_seed(0)
    fit(half := Line(), tmp_path / "half", **given(), updates=10, optimizer=sgd)
    fit(half, tmp_path / "half", **given(), updates=20, optimizer=sgd, resume=True)
    assert torch.equal(whole.map.weight, half.map.weight)
    with pytest.raises(ValueError, match=r"training.optimizer cannot change in a run that has begun"):
        fit(Line(), tmp_path / "half", **given(), updates=30, optimizer="Adam", resume=True)


@pytest.mark.parametrize("name", ["tokens", "smoothing", "init"])
def test_keys_that_mean_nothing_for_a_model_of_ones_own_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"{name}: is for models of a recipe"):
        fit(Line(), tmp_path / "run", **given(), **{name: 1})
    assert not (tmp_path / "run").exists()


def test_a_recipe_names_its_loss_its_optimizer_and_what_is_best(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_losses")
    vars(module)["Halved"] = Halved
    monkeypatch.setitem(sys.modules, "my_losses", module)
    halved = [*TINY, "training.loss=my_losses:Halved", "training.smoothing=0.0", "training.log_every=1"]
    run = fit(recipe_files.load_recipe(file, [*halved, "training.best=loss", "training.optimizer=SGD"]), tmp_path / "a")
    for loss, nll in zip(measured(run.folder, "loss"), measured(run.folder, "nll"), strict=True):
        assert loss == pytest.approx(nll / 2)
    assert "Validation loss" in (run.model / "README.md").read_text()
    again = fit(recipe_files.load_recipe(file, [*TINY, "training.best=chrf"]), tmp_path / "b")
    assert len(measured(again.folder, "valid_chrf")) == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.optimizer=SDG", r"is 'SDG'; it should be a class of torch.optim: .*SGD"),
        ("training.best=accuracy", r'training.best is "accuracy".* one of "score", "loss", "bleu", "chrf"'),
        ("training.loss=focal", r"training.loss \(command line\): is 'focal'; it should be .* a plug-in"),
    ],
)
def test_a_wrong_choice_is_named(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_files.load_recipe("bahdanau-phrasebook", [setting])


def test_equal_trainings_have_one_sha256(file: Path, tmp_path: Path) -> None:
    """Also of a tied table, of which safetensors writes the metadata in random order."""
    recipe = recipe_files.load_recipe(file, ["training.updates=1", "tied=decoder"])
    runs = [fit(recipe, tmp_path / name) for name in "abcd"]
    assert len({weights_sha256(run.model / "model.safetensors") for run in runs}) == 1
    assert len({(run.model / "model.safetensors").read_bytes() for run in runs}) == 1


def test_a_full_disk_names_the_folder_and_how_to_go_on(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.training.checkpoint import Checkpoints

    def full(*_: object) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as during:
        during.setattr(Checkpoints, "write", full)
        with pytest.raises(OSError, match=rf"the disk of {tmp_path / 'run'} is full .* --resume {tmp_path / 'run'}"):
            fit(recipe_files.load_recipe(file, TINY), tmp_path / "run")
    fit(recipe_files.load_recipe(file, TINY), tmp_path / "run", resume=True)


def test_the_figures_of_a_language_model_do_not_depend_on_its_vocabulary() -> None:
    from types import SimpleNamespace

    from regard.data import Pair
    from regard.training.tasks import recipe_task

    tokenizers: Any = SimpleNamespace(target=SimpleNamespace(encode=lambda text: text.split()))
    task = recipe_task(recipe_files.load_recipe("lstm-phrases"))
    values = task.figures([""], [Pair("nothing", "né né né né", 0)], math.log(8), None, tokenizers)
    expected = {"loss": math.log(8), "perplexity": 8.0, "bits per byte": 12 / 15, "bits per character": 12 / 11}
    assert values == {name: pytest.approx(value) for name, value in expected.items()}
