"""fit(model, …): the settings, the loss and the batches of a model that no recipe describes."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from regard.decoding import model_folders
from regard.files import DamagedFileError
from regard.training import Run, fit
from regard.training.checkpoint import read_checkpoint
from regard.training.own_model import ModelData, ModelRecipe
from regard.training.recipe_sections import RecipeError
from regard.training.run_folder import learning_curve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SETTINGS: dict[str, Any] = {
    "rate": 0.05,
    "schedule": "constant",
    "validate_every": 10,
    "save_every": 5,
    "log_every": 1,
    "average": 1,
    "accelerator": "cpu",
}


class Line(nn.Module):
    """y = a·x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 1)

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return ((self.map(batch["x"]) - batch["y"]) ** 2).mean()


@pytest.fixture
def batches() -> list[dict[str, torch.Tensor]]:
    x = torch.linspace(-1, 1, 48).reshape(12, 4, 1)
    return [{"x": each, "y": 3 * each + 1} for each in x]


def line() -> Line:
    torch.manual_seed(0)
    return Line()


def test_it_learns_and_is_kept(batches: list[Any], tmp_path: Path) -> None:
    model = line()
    run = fit(model, tmp_path / "run", train=batches, valid=batches[::3], updates=150, **SETTINGS)
    assert model.map.weight.item() == pytest.approx(3, abs=0.1)
    assert model.map.bias.item() == pytest.approx(1, abs=0.1)
    kept = load_file(run.model / "model.safetensors")
    assert torch.equal(kept["map.weight"], model.map.weight)
    rows = (run.folder / "metrics.csv").read_text().splitlines()
    assert rows[0].endswith(",valid_loss")
    assert len(rows) == 1 + 150 + 15
    assert (run.folder / "provenance.json").is_file()


def test_the_first_loss_is_that_of_a_batch(batches: list[Any], tmp_path: Path) -> None:
    run = fit(line(), tmp_path / "run", train=batches, valid=batches, updates=1, **SETTINGS)
    first = float((run.folder / "metrics.csv").read_text().splitlines()[1].split(",")[2])
    assert any(first == pytest.approx(line().loss(batch).item(), rel=1e-5) for batch in batches)


def test_extended_it_is_the_longer_run(batches: list[Any], tmp_path: Path) -> None:
    data = {"train": batches, "valid": batches}
    fit(whole := line(), tmp_path / "whole", **data, updates=20, **SETTINGS)
    fit(half := line(), tmp_path / "halves", **data, updates=10, **SETTINGS)
    assert not torch.equal(half.map.weight, whole.map.weight)
    fit(half := line(), tmp_path / "halves", **data, updates=20, resume=True, **SETTINGS)
    assert torch.equal(half.map.weight, whole.map.weight)


class Plane(Line):
    """y = a·x + b, with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 2)


def test_a_model_of_another_shape_leaves_a_finished_run_as_it_was(batches: list[Any], tmp_path: Path) -> None:
    data = {"train": batches, "valid": batches}
    run = fit(line(), tmp_path / "run", **data, updates=10, **SETTINGS).folder
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RuntimeError, match=r"size mismatch for model.map.weight: .*\[1, 1\].*\[2, 1\]"):
        fit(Plane(), run, **data, updates=20, resume=True, **SETTINGS)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_is_wrong_is_named_before_anything_is_made(batches: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Linear has no method loss\(batch\)"):
        fit(nn.Linear(1, 1), tmp_path / "run", train=batches, valid=batches)
    with pytest.raises(ValueError, match=r"fit needs batches to train on, and train has none: train=\[batch, …\]"):
        fit(line(), tmp_path / "run", valid=batches)
    with pytest.raises(ValueError, match="valid has no batches; give some, or leave it out"):
        fit(line(), tmp_path / "run", train=batches, valid=[])
    for given, key in [({"patience": 3}, "patience"), ({"schedule": "plateau"}, 'schedule="plateau"')]:
        with pytest.raises(ValueError, match=f"{key} follows the validation, and valid is not given"):
            fit(line(), tmp_path / "run", train=batches, **given)
    with pytest.raises(ValueError, match="updtes"):
        fit(line(), tmp_path / "run", train=batches, valid=batches, updtes=3)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r'strategy="fsdp" is for models of a recipe.*use strategy="ddp"'):
        fit(line(), tmp_path / "run", train=batches, valid=batches, strategy="fsdp")
    with pytest.raises(ValueError, match=r"run is no run: it holds no recipe\.toml"):
        fit(line(), tmp_path / "run", train=batches, valid=batches, resume=True)
    assert not (tmp_path / "run").exists()


class PickledLine(Line):
    """Saves itself in a form of its own."""

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        torch.save(self.state_dict(), folder / "line.pt")


class PretrainedLine(PickledLine):
    @classmethod
    def from_pretrained(cls, folder: Path) -> PretrainedLine:
        model = cls()
        model.load_state_dict(torch.load(folder / "line.pt", weights_only=True))
        return model


@pytest.mark.parametrize("kind", [Line, PretrainedLine])
def test_a_finished_run_gives_its_model_the_kept_weights(kind: type[Line], batches: list[Any], tmp_path: Path) -> None:
    options = {"train": batches, "valid": batches, "updates": 3} | SETTINGS
    fit(trained := kind(), tmp_path / "run", **options)
    fit(again := kind(), tmp_path / "run", resume=True, **options)
    assert torch.equal(again.map.weight, trained.map.weight)
    assert not again.training


def test_weights_that_only_the_model_can_read_are_not_passed_over(batches: list[Any], tmp_path: Path) -> None:
    options = {"train": batches, "valid": batches, "updates": 3} | SETTINGS
    fit(PickledLine(), tmp_path / "run", **options)
    with pytest.raises(ValueError, match=r"PickledLine has save_pretrained and no from_pretrained; load its weights"):
        fit(PickledLine(), tmp_path / "run", resume=True, **options)


def test_the_folder_may_have_any_name_and_move(batches: list[Any], tmp_path: Path) -> None:
    options = {"train": batches, "valid": batches} | SETTINGS
    fit(line(), tmp_path / "my run", updates=2, **options)
    assert ModelRecipe.open(tmp_path / "my run").name == "my-run"
    (tmp_path / "my run").rename(tmp_path / "moved")
    fit(line(), tmp_path / "moved", updates=3, resume=True, **options)
    assert ModelRecipe.open(tmp_path / "moved").training.updates == 3


def test_a_run_of_a_recipe_is_not_resumed_with_a_model(batches: list[Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "other"\n[data]\nkind = "opinions"\n')
    with pytest.raises(ValueError, match=r"recipe\.toml has not the settings of a run that fit\(model, …\) began"):
        fit(line(), tmp_path, train=batches, valid=batches, resume=True)


def test_a_model_keeps_its_dtypes(batches: list[Any], tmp_path: Path) -> None:
    class MixedLine(Line):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.full((), 1 / 3, dtype=torch.float64))
            self.register_buffer("third", torch.tensor(1 / 3, dtype=torch.float64))

        def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().loss(batch) + (self.shift - self.third) ** 2  # type: ignore[operator]

    model = MixedLine()
    fit(model, tmp_path / "run", train=batches, valid=batches, updates=2, **SETTINGS)
    assert [tensor.dtype for tensor in model.state_dict().values()].count(torch.float64) == 2
    assert model.map.weight.dtype == torch.float32
    assert model.third.item() == 1 / 3  # not rounded on the way


def test_the_command_line_names_what_continues_it(tmp_path: Path) -> None:
    """`regard train --resume` has no model and no batches."""
    from typer.testing import CliRunner

    from regard.commands import app

    x = torch.ones(2, 1)
    model = nn.Linear(1, 1)
    model.loss = lambda batch: model(batch).square().mean()  # type: ignore[assignment]
    fit(model, tmp_path / "run", train=[x], valid=[x], updates=1, accelerator="cpu")
    for changes in ([], ["training.updates=2"]):
        with pytest.raises(
            ValueError, match=r"began in Python, .* continue it there, with fit\(model, folder, resume="
        ):
            CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "run"), *changes], catch_exceptions=False)
    with pytest.raises(
        ValueError, match=r"run that fit\(model, …\) began in Python, .*: load the weights in Python, from"
    ):
        model_folders.load(tmp_path / "run")


def test_messages_name_the_call_that_continues_it(
    batches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"train": batches, "valid": batches, "updates": 20, **SETTINGS}
    call = f"fit(model, {str(tmp_path / 'run')!r}, resume=True, train=…, valid=…)"
    with monkeypatch.context() as patch:
        patch.setattr(Line, "loss", _signalled(Line.loss))
        with pytest.raises(SystemExit):
            fit(line(), tmp_path / "run", **options)
    assert f"interrupted; continue with: {call}\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match=re.escape(f"continue it with {call}, or replace it with force=True")):
        fit(line(), tmp_path / "run", **options)


LOSSES: dict[str, tuple[Callable[[Line, torch.Tensor], Any], str]] = {
    "rows": (
        lambda model, x: model.map(x).flatten(),
        r"returned a tensor of shape \[4\]; it should be a scalar tensor, .* losses\.mean\(\)",
    ),
    "number": (lambda model, x: model.map(x).mean().item(), "returned float; it should be a scalar tensor"),
    "constant": (lambda model, x: x.mean(), r"returned a loss without a gradient, .* without torch\.no_grad\(\)"),
    "detached": (lambda model, x: model.map(x).mean().detach(), "returned a loss without a gradient"),
    "other": (lambda model, x: torch.ones((), requires_grad=True) * 2, r"no parameter of the model got one: .*ModuleL"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_that_cannot_be_learned_from_is_named(
    kind: str, batches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, message = LOSSES[kind]
    monkeypatch.setattr(Line, "loss", lambda model, batch: loss(model, batch["x"]))
    with pytest.raises(ValueError, match=message):
        fit(line(), tmp_path / "run", train=batches, valid=batches, **SETTINGS)


def test_a_model_without_parameters_is_named(batches: list[Any], tmp_path: Path) -> None:
    model = line()
    model.map.requires_grad_(False)
    with pytest.raises(ValueError, match=r"no parameter to learn: none of model\.parameters\(\) has requires_grad"):
        fit(model, tmp_path / "run", train=batches, valid=batches, **SETTINGS)


@pytest.mark.parametrize("average", [None, 2])
def test_without_validation_the_last_weights_are_kept(
    average: int | None, batches: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {key: value for key, value in SETTINGS.items() if key != "average"}
    given = {} if average is None else {"average": average}
    fit(model := line(), tmp_path / "run", train=batches, updates=13, **given, **settings)
    fit(last := line(), tmp_path / "last", train=batches, updates=13, **settings)
    fit(before := line(), tmp_path / "before", train=batches, updates=10, **settings)
    expected = last.map.weight if average is None else (last.map.weight + before.map.weight) / 2
    assert torch.allclose(model.map.weight, expected)
    assert "not validated. Kept the " in capsys.readouterr().out
    assert "It was not validated. The weights are the " in (tmp_path / "run" / "model" / "README.md").read_text()
    assert not learning_curve(tmp_path / "run" / "metrics.csv", "valid_loss")
    fit(resumed := line(), tmp_path / "before", train=batches, updates=13, resume=True, **settings)
    assert torch.equal(resumed.map.weight, last.map.weight)


def test_no_message_names_an_option_of_the_command_line(batches: list[Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"train": batches, "valid": batches, **SETTINGS}
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"is no run; choose another folder, the second argument of fit$"):
        fit(line(), tmp_path / "notes", **options)
    run = fit(line(), tmp_path / "run", updates=10, **options)
    with Run.alone(run.folder), pytest.raises(ValueError, match=r"another process trains into .* another folder$"):
        fit(line(), run.folder, resume=True, updates=20, **options)
    with pytest.raises(ValueError, match=r"with a model into which the weights of .*run are loaded before fit$"):
        fit(line(), run.folder, resume=True, updates=20, ema=0.9, **options)
    for file in (run.last, run.previous):
        file.write_bytes(b"damaged")
    with pytest.raises(DamagedFileError, match=r"train anew with --force \(in Python with force=True\)"):
        fit(line(), run.folder, resume=True, updates=20, **options)


def test_ctrl_c_raises_what_python_does_once_the_update_is_saved(
    batches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"train": batches, "valid": batches, "updates": 20, **SETTINGS}
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(Line, "loss", _signalled(Line.loss, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            fit(line(), tmp_path / "run", **options)
    assert signal.getsignal(signal.SIGINT) == handler
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == 1
    fit(line(), tmp_path / "run", resume=True, **options)


def test_ctrl_c_before_the_first_update(batches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at once, and the handlers from before are back: the next one must count again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts without it
    monkeypatch.setattr(ModelData, "load", lambda self, processes: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            fit(line(), tmp_path / "run", train=batches, valid=batches, **SETTINGS)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def _signalled(
    loss: Callable[..., torch.Tensor], number: signal.Signals = signal.SIGTERM
) -> Callable[..., torch.Tensor]:
    """The same loss; the first time it is computed in training, the process gets a signal."""
    sent: list[int] = []

    def with_signal(model: nn.Module, batch: Any) -> torch.Tensor:
        if model.training and not sent:
            sent.append(number)
            signal.raise_signal(number)
        return loss(model, batch)

    return with_signal


MISTAKES: list[tuple[dict[str, Any], str]] = [
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
