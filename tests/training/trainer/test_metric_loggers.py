"""Loggers get the recipe and the metrics; a missing package is named before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pytorch_lightning")

from pytorch_lightning.loggers.logger import Logger

from regard.training import fit
from regard.training.recipe import recipe_loader
from regard.training.trainer import metric_loggers
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path


class Recorder(Logger):
    name, version = "recorder", 0

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {}
        self.lines: list[dict[str, float]] = []

    def log_hyperparams(self, params: Any, *arguments: Any, **options: Any) -> None:
        self.settings = params

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append({"update": step or 0, **metrics})


def test_a_logger_gets_the_recipe_and_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(metric_loggers, "require_packages", lambda settings: None)
    monkeypatch.setattr("regard.training.trainer.fit.require_packages", lambda settings: None)
    monkeypatch.setitem(metric_loggers.LOGGERS, "wandb", lambda run: recorder)
    settings = ["training.updates=2", "training.validate_every=2", 'training.loggers=["wandb"]']
    run = fit(recipe_loader.load_recipe(recipe_file(tmp_path, rows=60), settings), tmp_path / "run")
    assert recorder.settings["training.rate"] == 0.01
    assert recorder.settings["encoder.kind"] == "rnn"
    assert recorder.settings["data.train"] == "['train.tsv']"
    losses = [line["loss"] for line in recorder.lines if "loss" in line]
    assert losses == [float(row[2]) for row in measured(run.folder) if row[2]]
    assert [line["hp_metric"] for line in recorder.lines if "hp_metric" in line] == [float(measured(run.folder)[-1][6])]


def test_tensorboard_shows_the_recipe(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    settings = ["training.updates=1", "training.tensorboard=true"]
    run = fit(recipe_loader.load_recipe(recipe_file(tmp_path, rows=60), settings), tmp_path / "run")
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["training.rate"].number_value == 0.01
    assert values["decoder.attention"].string_value == "bahdanau"


def test_a_missing_package_is_named_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_loggers, "find_spec", lambda name: None)
    recipe = recipe_loader.load_recipe(recipe_file(tmp_path, rows=60), ['training.loggers=["mlflow"]'])
    with pytest.raises(ValueError, match=r'training\.loggers has "mlflow", which needs the package mlflow'):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
