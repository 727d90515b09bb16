"""What training says and where its metrics go: a progress bar or plain lines; TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..redaction import redacted
from .run.run_extension import flat_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.progress import TaskID

    from .recipe.recipe_sections import TrainingSection
    from .run.run_folder import Run

QUIET = 10.0
"""Seconds between lines where the output is no terminal."""


class ProgressBar:
    """Shows nothing on processes other than the first."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.console = Console(highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._updates = 0
        self._said = 0.0  # when the last line was

    def say(self, line: str) -> None:
        if self.shown:
            self.console.print(line, markup=False, soft_wrap=True)
            self._said = time.monotonic()

    def start(self, done: int, updates: int) -> None:
        self._updates, self._said = updates, time.monotonic()
        if self.shown and self.console.is_terminal:
            columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"))
            self._bar = Progress(*columns, console=self.console)
            self._task = self._bar.add_task("", total=updates, completed=done, figures="")
            self._bar.start()

    def move(self, done: int, figures: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, figures=figures)
        elif self.is_due:
            self.say(f"update {done:,} of {self._updates:,}: {figures.strip()}")

    @property
    def is_due(self) -> bool:
        """Whether `move` would print a line; always False in a terminal, which has the bar."""
        return self.shown and self._bar is None and time.monotonic() - self._said >= QUIET

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def require_packages(settings: TrainingSection) -> None:
    """Raise an error that names the key and the package that is missing."""
    for name in settings.loggers:
        if find_spec(name) is None:
            raise ValueError(f'training.loggers has "{name}", which needs the package {name}: pip install {name}')
    if settings.tensorboard and find_spec("tensorboard") is None:
        raise ValueError("training.tensorboard = true needs the tensorboard package: install it, or set it to false")


class TensorBoard:
    """Losses, scores and, under HPARAMS, the recipe."""

    def __init__(self, run: Run, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer = SummaryWriter(str(run.folder / "tensorboard"))
        for summary in hparams(dict(settings), {"hp_metric": -1.0}):
            self._writer._get_file_writer().add_summary(summary)

    def log(self, values: Mapping[str, float], update: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, update)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """It reads its own environment variables, such as WANDB_MODE."""

    def __init__(self, run: Run, settings: Mapping[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]

        project = os.environ.get("WANDB_PROJECT", "regard")
        self._run = wandb.init(
            project=project, name=run.folder.name, dir=str(run.folder), config=dict(settings), resume="allow"
        )

    def log(self, values: Mapping[str, float], update: int) -> None:
        self._run.log({**values, "update": update})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Without MLFLOW_TRACKING_URI the figures stay in the run's folder."""

    def __init__(self, run: Run, settings: Mapping[str, Any]) -> None:
        import mlflow  # type: ignore[import-not-found]

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri((run.folder / "mlflow").absolute().as_uri())
        mlflow.set_experiment("regard")
        self._mlflow = mlflow
        mlflow.start_run(run_name=run.folder.name)
        mlflow.log_params({key: str(value)[:250] for key, value in settings.items()})

    def log(self, values: Mapping[str, float], update: int) -> None:
        self._mlflow.log_metrics(dict(values), step=update)

    def close(self) -> None:
        self._mlflow.end_run()


LOGGERS: dict[str, Any] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def metric_loggers(run: Run) -> list[Any]:
    """The loggers of a run, with every setting of its recipe by its dotted key."""
    training = run.recipe.training
    kinds = [*([TensorBoard] if training.tensorboard else []), *(LOGGERS[name] for name in training.loggers)]
    plain = (bool, int, float, str)
    values = flat_settings(redacted(run.recipe.to_dict())) if kinds else {}
    settings = {key: value if isinstance(value, plain) else str(value) for key, value in values.items()}
    return [kind(run, settings) for kind in kinds]
