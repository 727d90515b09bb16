"""What training says and where its metrics go: a progress bar or plain lines; TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import DamagedFileError, make_folder, remove_unfinished
from ..messages import redacted
from .checkpoint import read_checkpoint, seed_everything
from .corpora import check, check_tokenizer
from .device import one_thread, require_precision, uses_graphs
from .distributed import Processes, Signals, batch_remark, check_processes, is_first_process, restarted
from .optimizer import rate, require_part_groups
from .preparation import write_settings
from .run import Provenance, Run, RunExtension, anchored, changed_settings, flat_settings, holds_run, require_open
from .streams import pin_revision
from .tasks import recipe_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.progress import TaskID

    from .recipe_sections import TrainingSection

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


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.utils.data import DataLoader

    from .batches import Corpora
    from .recipe import Recipe
    from .tasks import Task

    GivenBatches = Sequence[Any] | DataLoader[Any]
    RunParts = Callable[[Run, Callable[[str], None]], tuple[Task, Corpora]]


def fit(
    recipe: Recipe | nn.Module,
    folder: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    train: GivenBatches | None = None,
    valid: GivenBatches | None = None,
    seed: int = 1,
    **settings: Any,
) -> Run:
    """Train a recipe into `folder`; with `resume`, continue the run in that folder.

    Or train a model of one's own: `fit(model, folder, train=batches, valid=batches, updates=1000, rate=1e-3)`. The
    model has a method `loss(batch)`, the mean loss of a batch as a scalar, or a `regard.models.Loss`. `train` and
    `valid` are sequences of batches of tensors, or DataLoaders over datasets with numbered rows; `settings` are keys of
    [training], without FSDP. The model has the kept weights afterwards, and `folder/model` too. Without `valid` nothing
    is validated, and the last weights are kept.

    A run can continue with other settings in [data], [training] and [search] (`run/run_extension.py`): more updates,
    more data. The schedule is then that of the new settings, from the next update on.

    Ctrl-C raises KeyboardInterrupt once the current update is saved, SIGTERM and SIGUSR1 SystemExit(128 + number).
    """
    from torch import nn

    if isinstance(recipe, nn.Module):
        return _fit_model(recipe, Path(folder), train, valid, seed, settings, resume=resume, force=force)
    if train is not None or valid is not None or settings:
        raise TypeError("train, valid and settings of [training] are for a model; a recipe has its own")
    recipe, folder = anchored(recipe), Path(folder)
    check_processes(recipe.training)
    changed: dict[str, list[Any]] = {}
    restart = not resume and restarted() and holds_run(folder)
    resume = resume or restart
    if resume:
        run = Run.open(folder)
        recipe = pin_revision(recipe, run.recipe, restart=restart)
        changed = changed_settings(run.recipe, recipe)
        require_open(changed, folder)
    else:
        recipe = pin_revision(recipe)
        run = Run(folder, recipe)
        check_tokenizer(recipe.tokenizer.load)
        if recipe.training.init:
            from .fine_tuning import WarmStart

            WarmStart(recipe).check()
    if not resume or any(key.startswith("data.") for key in changed):
        check(recipe.data)
    require_packages(recipe.training)
    require_precision(recipe.training)
    with run_session(run, recipe, changed, resume=resume, force=force) as extension:
        if changed:
            run = Run(folder, recipe)
        with one_thread(recipe):
            _fit(run, _recipe_parts, extension, resume=resume, changed=changed)
    return run


def _recipe_parts(run: Run, say: Callable[[str], None]) -> tuple[Task, Corpora]:
    from .batches import Corpora

    task = recipe_task(run.recipe)
    return task, Corpora(run, task, say, fixed_shapes=uses_graphs(run.recipe))


def _fit_model(
    model: nn.Module,
    folder: Path,
    train: GivenBatches | None,
    valid: GivenBatches | None,
    seed: int,
    settings: dict[str, Any],
    *,
    resume: bool,
    force: bool,
) -> Run:
    from .own_model import ModelData, ModelRecipe, ModelTask

    recipe: Any = ModelRecipe.of_call(folder, seed, settings, train, validates=valid is not None)
    resume = resume or (restarted() and holds_run(folder))
    if resume:
        begun = ModelRecipe.open(folder)
        recipe = replace(recipe, name=begun.name)  # of the folder where the run began; it may have moved
    check_processes(recipe.training)
    require_packages(recipe.training)
    require_precision(recipe.training)
    run, changed = Run(folder, recipe), dict[str, list[Any]]()

    def parts(run: Run, say: Callable[[str], None]) -> tuple[Task, Corpora]:
        task = ModelTask(recipe, model)
        return task, ModelData(run, task, say, train, valid)

    parts(run, print)  # what is wrong with them, before the folder is made
    if resume:
        changed = changed_settings(begun, recipe)  # type: ignore[arg-type]
        require_open(changed, folder)
    with run_session(run, recipe, changed, resume=resume, force=force) as extension:
        finished = resume and not changed and run.model.exists()
        _fit(run, parts, extension, resume=resume, changed=changed)
        if finished:
            ModelTask(recipe, model).load_kept(run.model)
    return run


def _fit(run: Run, parts: RunParts, extension: RunExtension, *, resume: bool, changed: dict[str, list[Any]]) -> None:
    """Prepare, train, and keep the best model; what ends it by a signal says how to continue."""
    from .loop import Training

    recipe, folder, first = run.recipe, run.folder, is_first_process()
    make_folder(run.checkpoints)
    if first:
        remove_unfinished(folder)
    bar = ProgressBar(shown=first)
    if resume and not changed and run.model.exists():  # changed: the first process is about to move that model
        bar.say(f"{folder} is finished: its model is in {run.model}")
        return
    for remark in _remarks(recipe, changed):
        bar.say(remark)
    seed_everything(recipe.seed)
    task, corpora = parts(run, bar.say)
    signals, training = Signals(), cast("Any", None)
    signals.install()
    try:
        processes = Processes(recipe.training, run.continuation)
        training = Training(run, task, corpora, bar, processes, signals)
        with processes.lost_process_errors(lambda: training.update):
            checkpoint = training.checkpoints.resumable(bar.say) if resume else None
            if resume and checkpoint is None:
                bar.say(f"{folder} has no checkpoint yet: training begins anew")
            if first:
                training.loggers = metric_loggers(run)
                corpora.prepare()
            processes.barrier()
            corpora.load(processes)
            training.train(checkpoint, extension)
            if training.interrupted is not None:
                raise SystemExit(128 + training.interrupted)
            bar.stop()
            # All updates are saved; what follows is done again when the run is resumed. One process ends at once, also
            # by a signal that came before; of several, none before the others, which would wait for it.
            signals.at_once = processes.world == 1
            if signals.at_once and signals.received is not None:
                raise SystemExit(128 + signals.received)
            if first:
                extension.begin()
            training.save_final_model()
    except SystemExit as left:
        if not run.last.exists():
            bar.say("nothing is saved yet")
        if first and not extension.has_begun:
            bar.say(f"interrupted; no setting of {folder} has changed yet")
        else:
            bar.say(f"interrupted; continue with: {run.continuation}")
        raise (KeyboardInterrupt if left.code == 128 + SIGINT else left) from None
    finally:
        for logger in training.loggers if training is not None else ():
            logger.close()
        signals.restore()
        bar.stop()


def _remarks(recipe: Recipe, changed: dict[str, list[Any]]) -> Iterator[str]:
    """What changes, and settings that are allowed but probably not intended: a warm-up longer than the training."""
    for key, (old, new) in changed.items():
        yield f"{key}: {old!r:.80} becomes {new!r:.80}"
    settings = recipe.training
    if remark := batch_remark(settings, changed):
        yield remark
    if settings.updates < settings.warmup:
        yield (
            f"training.warmup = {settings.warmup:,} is more than training.updates = {settings.updates:,}: the rate "
            f"rises to {rate(settings, settings.updates):.2g} and never reaches training.rate = {settings.rate:.2g}"
        )
    soft = getattr(getattr(recipe, "decoder", None), "warmup", 0)
    if settings.updates < soft:
        yield (
            f"decoder.warmup = {soft:,} is more than training.updates = {settings.updates:,}: attention stays softer "
            "than it is meant to end"
        )


@contextmanager
def run_session(
    run: Run, recipe: Recipe, changed: dict[str, list[Any]], *, resume: bool, force: bool
) -> Iterator[RunExtension]:
    """A start of the command: the run's folder, made, locked and with this start recorded by the first process.

    A start that changes settings is checked here, and recorded by `RunExtension.begin`.
    """
    first, folder = is_first_process(), run.folder
    if first and not folder.exists():
        make_folder(folder)
    with Run.alone(folder) if first and folder.is_dir() else nullcontext():
        if first and not resume:
            Run.create(recipe, folder, force=force)
        checkpoint = _last_checkpoint(run)
        update = 0 if checkpoint is None else int(checkpoint["global_step"])
        if first and changed:
            _check_extension(run, recipe, checkpoint, update, changed)
        elif first and not run.model.exists():
            Provenance(run.folder).begin_session(update, {})
        yield RunExtension(run, recipe, update, changed)


def _last_checkpoint(run: Run) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; whether it is whole is checked before training resumes."""
    for file in (run.last, run.previous):
        with suppress(DamagedFileError):
            if file.is_file():
                return read_checkpoint(file)
    return None


def _check_extension(
    run: Run, recipe: Recipe, checkpoint: dict[str, Any] | None, update: int, changed: dict[str, list[Any]]
) -> None:
    settings = recipe.training
    if settings.updates < update:
        raise ValueError(
            f"the run is at update {update:,}, and training.updates = {settings.updates:,} is less: raise it"
        )
    if checkpoint is not None:
        highest, _ = changed.get("training.rate", (settings.rate, settings.rate))
        require_part_groups(checkpoint, settings, highest, run.folder)
    write_settings(run)  # a run of an earlier version has not written them
