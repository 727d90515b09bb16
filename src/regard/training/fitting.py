"""`fit`: what is checked before a run begins, and what it says."""

from __future__ import annotations

import errno
import re
import shutil
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from ..files import DamagedFileError, make_folder, remove_unfinished
from .checkpoint import read_checkpoint, seed_everything
from .corpora import check, check_tokenizer
from .devices import (
    Processes,
    Signals,
    batch_remark,
    check_processes,
    is_first_process,
    one_thread,
    require_precision,
    restarted,
    uses_graphs,
)
from .parameters import WarmStart
from .recipe_sections import GIVEN
from .run_batches import Corpora
from .run_folder import (
    Provenance,
    Run,
    RunExtension,
    anchored,
    changed_settings,
    holds_run,
    require_open,
)
from .tasks import recipe_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from rich.progress import Progress, TaskID
    from torch import nn
    from torch.utils.data import DataLoader

    from .loop import Given
    from .recipe import Recipe
    from .tasks import Task

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
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"))
            self._bar = Progress(*columns, console=self.console)
            self._task = self._bar.add_task("", total=updates, completed=done, figures="")
            self._bar.start()

    def move(self, done: int, figures: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, figures=figures)
        elif self.shown and time.monotonic() - self._said >= QUIET:
            self.say(f"update {done:,} of {self._updates:,}: {figures.strip()}")

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


if TYPE_CHECKING:
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
    loss: Callable[[Any, Any], Any] | None = None,
    metric: Callable[[Any], float] | None = None,
    optimizer: str | Callable[[Any], torch.optim.Optimizer] | None = None,
    callbacks: Sequence[Callable[[int, dict[str, Any]], object]] = (),
    **settings: Any,
) -> Run:
    """Train a recipe into `folder`; with `resume`, continue the run in that folder.

    Or train a model of one's own: `fit(model, folder, train=batches, valid=batches, updates=1000, rate=1e-3)`. The
    model has a method `loss(batch)`, the mean loss of a batch as a scalar, or a `regard.models.Loss`. `train` and
    `valid` are sequences of batches of tensors, or DataLoaders over datasets with numbered rows; `settings` are keys of
    [training], without FSDP. The model has the kept weights afterwards, and `folder/model` too. Without `valid` nothing
    is validated, and the last weights are kept.

    `loss(model, batch)` is minimised instead; `metric(model)`, the higher the better, chooses the weights that are
    kept; `optimizer` is the name of a class in torch.optim or makes one from groups of parameters, as
    `partial(torch.optim.SGD, momentum=0.9)` does, and its rate follows the schedule; `callbacks` are called with the
    update and the figures of each line of metrics.csv, and one that returns True ends the training.

    A run can continue with other settings in [training] and [search], such as more updates. The schedule is then that
    of the new settings, from the next update on.

    Ctrl-C raises KeyboardInterrupt once the current update is saved, SIGTERM and SIGUSR1 SystemExit(128 + number).
    """
    from torch import nn

    from .loop import Given

    folder = Path(folder)
    if optimizer is not None:
        settings["optimizer"] = optimizer if isinstance(optimizer, str) else GIVEN
    given = Given(loss, metric, None if isinstance(optimizer, str) else optimizer, callbacks)
    restart = not resume and restarted() and holds_run(folder)
    resume = resume or restart
    chosen: Any = recipe
    if isinstance(recipe, nn.Module):
        chosen, begun, parts = _own_model(recipe, folder, train, valid, seed, settings, given, resume=resume)
    elif train is not None or valid is not None or settings.keys() - {"optimizer"}:
        raise TypeError("train, valid and settings of [training] are for a model; a recipe has its own")
    else:
        chosen = anchored(recipe.with_settings("training", **settings) if settings else recipe)
        begun = Run.open(folder, continues=True).recipe if resume else None
        parts = partial(_recipe_parts, given)
    check_processes(chosen.training)
    changed = changed_settings(begun.to_dict(), chosen.to_dict()) if begun is not None else {}
    require_open(changed, folder)
    if hasattr(chosen, "data") and not resume:
        check_tokenizer(chosen.tokenizer.load)
        if chosen.training.init:
            WarmStart(chosen).check()
        check(chosen.data)
    require_precision(chosen.training)
    run = Run(folder, chosen)
    with run_session(run, chosen, changed, resume=resume, force=force) as extension, one_thread(chosen):
        _fit(run, parts, extension, given, resume=resume, changed=changed)
    return run


def _recipe_parts(given: Given, run: Run, say: Callable[[str], None]) -> tuple[Task, Corpora]:
    task = recipe_task(run.recipe)
    if given.metric is not None:
        task.measure_by(given.metric)
    graphs = given.loss is None and uses_graphs(run.recipe)
    return task, Corpora(run, task, say, fixed_shapes=graphs)


def _own_model(
    model: nn.Module,
    folder: Path,
    train: GivenBatches | None,
    valid: GivenBatches | None,
    seed: int,
    settings: dict[str, Any],
    given: Given,
    *,
    resume: bool,
) -> tuple[Any, Any, RunParts]:
    """The recipe of the call and that of the run which it continues, and what makes task and batches."""
    from .own_model import ModelData, ModelRecipe, ModelTask, takes_smoothing

    smooths = given.loss is None and takes_smoothing(model)
    recipe: Any = ModelRecipe.of_call(folder, seed, settings, train, validates=valid is not None, smooths=smooths)
    begun = ModelRecipe.open(folder) if resume else None
    if begun is not None:
        recipe = replace(recipe, name=begun.name)  # of the folder where the run began; it may have moved

    def parts(run: Run, say: Callable[[str], None]) -> tuple[Task, Corpora]:
        task = ModelTask(recipe, model, given)
        return task, ModelData(run, task, say, train, valid)

    parts(Run(folder, recipe), print)  # what is wrong with them, before the folder is made
    return recipe, begun, parts


def _fit(
    run: Run,
    parts: RunParts,
    extension: RunExtension,
    given: Given,
    *,
    resume: bool,
    changed: dict[str, list[Any]],
) -> None:
    """Prepare, train, and keep the best model; what ends it by a signal says how to continue."""
    from .loop import Training

    recipe, folder, first = run.recipe, run.folder, is_first_process()
    make_folder(run.checkpoints)
    if first:
        remove_unfinished(folder)
    bar = ProgressBar(shown=first)
    seed_everything(recipe.seed)
    task, corpora = parts(run, bar.say)
    if resume and not changed and run.model.exists():  # changed: the first process is about to move that model
        bar.say(f"{folder} is finished: its model is in {run.model}")
        task.load_kept(run.model)
        return
    for key, (old, new) in changed.items():
        bar.say(f"{key}: {old!r:.80} becomes {new!r:.80}")
    if remark := batch_remark(recipe.training, changed):
        bar.say(remark)
    signals, training = Signals(), cast("Any", None)
    signals.install()
    try:
        processes = Processes(recipe.training, run.continuation)
        training = Training(run, task, corpora, bar, processes, signals, given)
        with processes.lost_process_errors(lambda: training.update), full_disk_errors(run):
            checkpoint = training.checkpoints.resumable(bar.say) if resume else None
            if resume and checkpoint is None:
                bar.say(f"{folder} has no checkpoint yet: training begins anew")
            if first:
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
        signals.restore()
        bar.stop()


NO_SPACE = re.compile(r"No space left|Disk quota|PytorchStreamWriter|unexpected pos|\bos error (?:28|122)\b")
"""In what libraries raise when a file cannot grow."""


@contextmanager
def full_disk_errors(run: Run) -> Iterator[None]:
    """Name the folder, and what continues the run, where a disk is full: nothing that was saved is lost."""
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and not NO_SPACE.search(str(error)):
            raise
        free = shutil.disk_usage(run.folder).free / 1e6
        raise OSError(
            f"the disk of {run.folder} is full ({free:,.0f} MB free): what was saved before is whole; free some, and "
            f"continue with: {run.continuation}"
        ) from error


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
        if recipe.training.updates < update:
            raise ValueError(
                f"the run is at update {update:,}, and training.updates = {recipe.training.updates:,} is less: raise it"
            )
        if first and not changed and not run.model.exists():
            Provenance(run.folder).begin_session(update, {})
        yield RunExtension(run, recipe, update, changed)


def _last_checkpoint(run: Run) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; whether it is whole is checked before training resumes."""
    for file in (run.last, run.previous):
        with suppress(DamagedFileError):
            if file.is_file():
                return read_checkpoint(file)
    return None
