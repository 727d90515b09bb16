"""Loggers get the recipe and the metrics; a missing package is named before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from regard.training import Run, fit, fitting, recipe_files
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path


class Recorder:
    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.lines: list[dict[str, float]] = []
        self.closed = False

    def __call__(self, run: Run, settings: dict[str, Any]) -> Recorder:
        self.settings = settings
        return self

    def log(self, values: dict[str, float], update: int) -> None:
        self.lines.append({"update": update, **values})

    def close(self) -> None:
        self.closed = True


def test_a_logger_gets_the_recipe_and_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr("regard.training.fitting.require_packages", lambda settings: None)
    monkeypatch.setitem(fitting.LOGGERS, "wandb", recorder)
    settings = ["training.updates=2", "training.validate_every=2", 'training.loggers=["wandb"]']
    run = fit(recipe_files.load_recipe(recipe_file(tmp_path, rows=60), settings), tmp_path / "run")
    assert recorder.settings["training.rate"] == 0.01
    assert recorder.settings["encoder.kind"] == "rnn"
    assert recorder.settings["data.train"] == "['train.tsv']"
    losses = [line["loss"] for line in recorder.lines if "loss" in line]
    assert losses == [float(row[2]) for row in measured(run.folder) if row[2]]
    assert recorder.closed
    assert [line["hp_metric"] for line in recorder.lines if "hp_metric" in line] == [float(measured(run.folder)[-1][6])]


def test_tensorboard_shows_the_recipe(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    settings = ["training.updates=1", "training.tensorboard=true"]
    run = fit(recipe_files.load_recipe(recipe_file(tmp_path, rows=60), settings), tmp_path / "run")
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["training.rate"].number_value == 0.01
    assert values["decoder.attention"].string_value == "bahdanau"


def test_a_missing_package_is_named_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "find_spec", lambda name: None)
    recipe = recipe_files.load_recipe(recipe_file(tmp_path, rows=60), ['training.loggers=["mlflow"]'])
    with pytest.raises(ValueError, match=r'training\.loggers has "mlflow", which needs the package mlflow'):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
