"""`fit`: trains a recipe into a run's folder."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any

from ...atomic_write import make_folder, remove_unfinished
from ...process_group_exit import leave_groups_at_exit
from ..corpora import check, check_tokenizer
from ..distributed.process_launch import (
    batch_remark,
    check_processes,
    join_restarted_group,
    lost_process_errors,
    restarted,
)
from ..run.run_extension import changed_settings, require_open
from ..run.run_folder import Run, anchored, holds_run
from ..streams import pin_revision
from ..tasks.task import recipe_task
from .device_settings import accelerator, one_thread, require_precision, uses_graphs
from .final_model import save_final_model
from .lightning_trainer import hide_remarks, make_trainer
from .metric_loggers import log_recipe, require_packages
from .run_session import is_first_process, run_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.utils.data import DataLoader

    from ..recipe.recipe import Recipe
    from ..run.run_extension import RunExtension
    from ..tasks.task import Task
    from .data_module import DataModule

    GivenBatches = Sequence[Any] | DataLoader[Any]
    RunParts = Callable[[Run, Callable[[str], None]], tuple[Task, DataModule]]


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
    first = is_first_process()
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
            from ..fine_tuning.warm_start import WarmStart

            WarmStart(recipe).check()
    if not resume or any(key.startswith("data.") for key in changed):
        check(recipe.data)
    require_packages(recipe.training)
    require_precision(recipe.training)
    with run_session(run, recipe, changed, resume=resume, force=force) as extension:
        if changed:
            run = Run(folder, recipe)
        with one_thread(recipe):
            _fit(run, _recipe_parts, extension, first=first, resume=resume, changed=changed)
    return run


def _recipe_parts(run: Run, say: Callable[[str], None]) -> tuple[Task, DataModule]:
    from .data_module import DataModule

    task = recipe_task(run.recipe)
    return task, DataModule(run, task, say, fixed_shapes=uses_graphs(run.recipe))


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
    from ..own_model.model_settings import ModelRecipe
    from ..own_model.model_task import ModelData, ModelTask

    recipe: Any = ModelRecipe.of_call(folder, seed, settings, train, validates=valid is not None)
    resume = resume or (restarted() and holds_run(folder))
    if resume:
        begun = ModelRecipe.open(folder)
        recipe = recipe.model_copy(update={"name": begun.name})  # of the folder where the run began; it may have moved
    check_processes(recipe.training)
    require_packages(recipe.training)
    require_precision(recipe.training)
    first, run, changed = is_first_process(), Run(folder, recipe), dict[str, list[Any]]()

    def parts(run: Run, say: Callable[[str], None]) -> tuple[Task, DataModule]:
        task = ModelTask(recipe, model)
        return task, ModelData(run, task, say, train, valid)

    parts(run, print)  # what is wrong with them, before the folder is made
    if resume:
        changed = changed_settings(begun, recipe)  # type: ignore[arg-type]
        require_open(changed, folder)
    with run_session(run, recipe, changed, resume=resume, force=force) as extension:
        finished = resume and not changed and run.model.exists()
        _fit(run, parts, extension, first=first, resume=resume, changed=changed)
        if finished:
            ModelTask(recipe, model).load_kept(run.model)
    return run


def _fit(
    run: Run, parts: RunParts, extension: RunExtension, *, first: bool, resume: bool, changed: dict[str, list[Any]]
) -> None:
    import pytorch_lightning as lightning
    from pytorch_lightning.utilities.exceptions import SIGTERMException

    from .lightning_module import TrainingModule
    from .progress_bar import ProgressBar

    recipe, folder = run.recipe, run.folder
    make_folder(run.checkpoints)
    if first:
        remove_unfinished(folder)
    bar = ProgressBar(shown=first)
    if resume and not changed and run.model.exists():  # changed: the first process is about to move that model
        bar.say(f"{folder} is finished: its model is in {run.model}")
        return
    for key, (old, new) in changed.items():
        bar.say(f"{key}: {old!r:.80} becomes {new!r:.80}")
    if remark := batch_remark(recipe.training, changed):
        bar.say(remark)
    for remark in _remarks(recipe):
        bar.say(remark)
    hide_remarks()
    lightning.seed_everything(recipe.seed, verbose=False)
    task, corpora = parts(run, bar.say)
    fitting = TrainingModule(run, task, corpora, bar, extension)
    checkpoint = fitting.manifest.resumable(bar.say) if resume else None
    if resume and checkpoint is None:
        bar.say(f"{folder} has no checkpoint yet: training begins anew")
    last, fitting.resumed = (None, None) if checkpoint is None else checkpoint
    fitting.starts = last is None
    leave_groups_at_exit()
    join_restarted_group(accelerator(recipe.training))
    trainer = make_trainer(run)
    log_recipe(trainer.loggers, recipe)
    try:
        with lost_process_errors(trainer, run.continuation):
            trainer.fit(fitting, datamodule=corpora, ckpt_path=last, weights_only=True)
            if fitting.interrupted is not None:
                raise SystemExit(128 + fitting.interrupted)
            bar.stop()
            # All updates are saved; what follows is done again when the run is resumed.
            fitting.signals.training_ended(trainer.world_size)
            fitting.begin_extension()
            save_final_model(fitting, trainer)
    except SystemExit as left:
        # Lightning raises 0 or 1 after a signal before the first update; we raise what the shell expects.
        code = left.code if isinstance(left.code, int) and left.code > 128 else 128 + SIGINT
        if not run.last.exists():
            bar.say("nothing is saved yet")
        if first and not extension.has_begun:
            bar.say(f"interrupted; no setting of {folder} has changed yet")
        else:
            bar.say(f"interrupted; continue with: {run.continuation}")
        code = 128 + SIGTERM if isinstance(left, SIGTERMException) else code
        raise (KeyboardInterrupt if code == 128 + SIGINT else SystemExit(code)) from None
    finally:
        fitting.signals.restore()
        bar.stop()


def _remarks(recipe: Recipe) -> Iterator[str]:
    """Settings that are allowed but probably not intended: a warm-up longer than the training."""
    from ..optimization.learning_rate import rate

    settings = recipe.training
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
