"""`fit`: trains a recipe into a run's folder."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any

from ...atomic_write import make_folder, remove_unfinished, replacing_folder
from ...json_file import DamagedFileError
from ..distributed.process_launch import (
    batch_remark,
    check_processes,
    join_restarted_group,
    lost_process_errors,
    restarted,
)
from ..preparation.prepared_settings import write_settings
from ..preparation.recipe_corpus import check, check_tokenizer
from ..run.checkpoint_manifest import read_checkpoint
from ..run.provenance import Provenance
from ..run.run_extension import changed_settings, require_open
from ..run.run_folder import Run, anchored, holds_run
from ..tasks.task import recipe_task
from .metric_loggers import log_recipe, metric_loggers, require_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pytorch_lightning as lightning
    from pytorch_lightning.plugins.precision import Precision
    from pytorch_lightning.strategies import Strategy
    from torch import nn

    from ..recipe.recipe import Recipe, TrainingSection
    from ..tasks.task import Task
    from .data_module import DataModule
    from .lightning_module import TrainingModule

    RunParts = Callable[[Run, Callable[[str], None]], tuple[Task, DataModule]]


def fit(
    recipe: Recipe | nn.Module,
    folder: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    train: Sequence[Any] | None = None,
    valid: Sequence[Any] | None = None,
    seed: int = 1,
    **settings: Any,
) -> Run:
    """Train a recipe into `folder`; with `resume`, continue the run in that folder.

    Or train a model of one's own: `fit(model, folder, train=batches, valid=batches, updates=1000, rate=1e-3)`. The
    model has a method `loss(batch)`, the mean loss of a batch as a scalar, or a `regard.models.Loss`. `train` and
    `valid` are sequences of batches of tensors; `settings` are keys of [training], without FSDP. The model has the kept
    weights afterwards, and `folder/model` too.

    A run can continue with other settings in [data], [training] and [search] (`run/run_extension.py`): more updates,
    more data. The schedule is then that of the new settings, from the next update on.
    """
    from torch import nn

    if isinstance(recipe, nn.Module):
        return _fit_model(recipe, Path(folder), train or [], valid or [], seed, settings, resume=resume, force=force)
    if train is not None or valid is not None or settings:
        raise TypeError("train, valid and settings of [training] are for a model; a recipe has its own")
    recipe, folder = anchored(recipe), Path(folder)
    check_processes(recipe.training)
    first = _first()
    changed: dict[str, list[Any]] = {}
    resume = resume or (restarted() and holds_run(folder))
    if resume:
        run = Run.open(folder)
        changed = changed_settings(run.recipe, recipe)
        require_open(changed, folder)
    else:
        run = Run(folder, recipe)
        check_tokenizer(recipe.tokenizer.load)
        if recipe.training.init:
            from .warm_start import WarmStart

            WarmStart(recipe).check()
    if not resume or any(key.startswith("data.") for key in changed):
        check(recipe.data)
    require_packages(recipe.training)
    _require_precision(recipe.training)
    with _session(run, recipe, changed, resume=resume, force=force):
        if changed:
            run = Run(folder, recipe)
        with one_thread(recipe):
            _fit(run, _recipe_parts, first=first, resume=resume, changed=changed)
    return run


@contextmanager
def _session(run: Run, recipe: Recipe, changed: dict[str, list[Any]], *, resume: bool, force: bool) -> Iterator[None]:
    """The run's folder, made, locked and with this start recorded by the first of all processes."""
    first, folder = _first(), run.folder
    if first and not folder.exists():
        make_folder(folder)
    with Run.alone(folder) if first and folder.is_dir() else nullcontext():
        if first and not resume:
            Run.create(recipe, folder, force=force)
        update = _last_update(run)
        if first:
            _begin_session(run, recipe, update, changed)
        yield


def _first() -> bool:
    """Whether this is the first of all processes, which makes the folder."""
    from lightning_utilities.core.rank_zero import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) == 0


def _recipe_parts(run: Run, say: Callable[[str], None]) -> tuple[Task, DataModule]:
    from .data_module import DataModule

    task = recipe_task(run.recipe)
    return task, DataModule(run, task, say, fixed_shapes=_graphs(run.recipe))


def _fit_model(
    model: nn.Module,
    folder: Path,
    train: Sequence[Any],
    valid: Sequence[Any],
    seed: int,
    settings: dict[str, Any],
    *,
    resume: bool,
    force: bool,
) -> Run:
    from ..recipe.recipe import TrainingSection
    from .model_task import ModelData, ModelRecipe, ModelTask, run_name

    recipe: Any = ModelRecipe(name=run_name(folder), seed=seed, training=TrainingSection(**settings))
    if recipe.training.init or recipe.training.graphs is True:
        raise ValueError("init and graphs are for models of a recipe; load weights into the model before fit")
    if recipe.training.strategy == "fsdp":
        raise ValueError(
            'strategy="fsdp" is for models of a recipe: a model of one\'s own stays sharded over the processes, and '
            'cannot get its kept weights; use strategy="ddp"'
        )
    resume = resume or (restarted() and holds_run(folder))
    if resume:
        begun = ModelRecipe.open(folder)
        recipe = recipe.model_copy(update={"name": begun.name})  # of the folder where the run began; it may have moved
    check_processes(recipe.training)
    require_packages(recipe.training)
    _require_precision(recipe.training)
    first, run, changed = _first(), Run(folder, recipe), dict[str, list[Any]]()

    def parts(run: Run, say: Callable[[str], None]) -> tuple[Task, DataModule]:
        task = ModelTask(recipe, model)
        return task, ModelData(run, task, say, train, valid)

    parts(run, print)  # what is wrong with them, before the folder is made
    if resume:
        changed = changed_settings(begun, recipe)  # type: ignore[arg-type]
        require_open(changed, folder)
    with _session(run, recipe, changed, resume=resume, force=force):
        finished = resume and not changed and run.model.exists()
        _fit(run, parts, first=first, resume=resume, changed=changed)
        if finished:
            ModelTask(recipe, model).load_kept(run.model)
    return run


def _last_checkpoint(run: Run) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; whether it is whole is checked before training resumes."""
    for file in (run.last, run.previous):
        with suppress(DamagedFileError):
            if file.is_file():
                return read_checkpoint(file)
    return None


def _last_update(run: Run) -> int:
    checkpoint = _last_checkpoint(run)
    return 0 if checkpoint is None else int(checkpoint["global_step"])


def _begin_session(run: Run, recipe: Recipe, update: int, changed: dict[str, list[Any]]) -> None:
    """Record the session, unless the run is finished; then write the recipe if it changed.

    In this order: killed between the two, the changes are recorded twice. In the other order, they would not be.
    """
    settings = recipe.training
    if changed and settings.updates < update:
        raise ValueError(
            f"the run is at update {update:,}, and training.updates = {settings.updates:,} is less: raise it"
        )
    if changed and (checkpoint := _last_checkpoint(run)) is not None:
        from .parameter_groups import require_part_groups

        rate, _ = changed.get("training.rate", (settings.rate, settings.rate))
        require_part_groups(checkpoint, settings, rate, run.folder)
    if changed or not run.model.exists():
        Provenance(run.folder).begin_session(update, changed)
    if changed:
        write_settings(run)  # a run of an earlier version has not written them
        run.extend(recipe, update)


FIRST_SCALE = 2.0**16
"""Of the mean loss of a batch in float16; it is adapted while training."""
NARROW = 128
"""Widths up to which a recurrent model is trained by one thread."""


@contextmanager
def one_thread(recipe: Recipe) -> Iterator[None]:
    """One thread for a narrow recurrent model on a CPU, and for nothing else.

    Its operations are so short that a second thread saves nothing, and where another process keeps a core busy each
    of them waits for it. The recipe alone decides: how many threads there are shows in the last digits of the sums.
    """
    import torch

    parts = [part for part in (recipe.encoder, recipe.decoder) if part is not None]
    narrow = any(part.recurrent for part in parts) and all(part.width <= NARROW for part in parts)
    threads = torch.get_num_threads()
    if narrow and _accelerator(recipe.training) == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _fit(run: Run, parts: RunParts, *, first: bool, resume: bool, changed: dict[str, list[Any]]) -> None:
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
    _quiet()
    lightning.seed_everything(recipe.seed, verbose=False)
    task, corpora = parts(run, bar.say)
    fitting = TrainingModule(run, task, corpora, bar)
    checkpoint = fitting.manifest.resumable(bar.say) if resume else None
    if resume and checkpoint is None:
        bar.say(f"{folder} has no checkpoint yet: training begins anew")
    last, fitting.resumed = (None, None) if checkpoint is None else checkpoint
    fitting.starts = last is None
    join_restarted_group(_accelerator(recipe.training))
    trainer = _trainer(run)
    log_recipe(trainer.loggers, recipe)
    try:
        with lost_process_errors(trainer, folder):
            trainer.fit(fitting, datamodule=corpora, ckpt_path=last, weights_only=True)
        if fitting.interrupted:
            raise SystemExit(128 + (fitting.signals.received or SIGTERM))  # SIGTERM where another process got it
    except SystemExit as left:
        # Lightning raises 0 or 1 after a signal before the first update; we raise what the shell expects.
        code = left.code if isinstance(left.code, int) and left.code > 128 else 128 + SIGINT
        if not run.last.exists():
            bar.say("nothing is saved yet")
        bar.say(f"interrupted; continue with: regard train --resume {folder}")
        raise SystemExit(128 + SIGTERM if isinstance(left, SIGTERMException) else code) from None
    finally:
        fitting.signals.restore()
        bar.stop()
    with lost_process_errors(trainer, folder):
        _finish(fitting, trainer)


def _trainer(run: Run) -> lightning.Trainer:
    import pytorch_lightning as lightning

    settings = run.recipe.training
    precision = settings.precision
    if precision == "auto":
        precision = "bf16-mixed" if _accelerator(settings) == "cuda" else "32-true"
    scaled = precision == "16-mixed"
    return lightning.Trainer(
        accelerator=_accelerator(settings),
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=_strategy(settings),
        precision=None if scaled else precision,
        plugins=[_scaled_precision(settings)] if scaled else None,
        max_steps=settings.updates,
        max_epochs=-1,
        logger=metric_loggers(run),
        limit_val_batches=0,  # validation is part of the update, so that a checkpoint knows its result;
        enable_checkpointing=False,  # the module writes the checkpoints, for the same reason
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def _scaled_precision(settings: TrainingSection) -> Precision:
    """float16 with a scaled loss (Micikevicius et al. 2018): its gradients would else be rounded to zero.

    The loss is a sum over the tokens of a batch, so the first scale is for the mean of so many.
    """
    import torch
    from pytorch_lightning.plugins.precision import MixedPrecision

    return MixedPrecision("16-mixed", "cuda", torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE / settings.tokens))


def _strategy(settings: TrainingSection) -> str | Strategy:
    if settings.strategy != "fsdp":
        return settings.strategy
    from ..distributed.sharded_strategy import ShardedStrategy

    return ShardedStrategy(settings.devices * settings.nodes)


def _remarks(recipe: Recipe) -> Iterator[str]:
    """Settings that are allowed but probably not intended: a warm-up longer than the training."""
    from .learning_rate import rate

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


def _accelerator(settings: TrainingSection) -> str:
    import torch

    if settings.accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if settings.accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError("training.accelerator is 'cuda', and PyTorch finds no CUDA device here; leave it at 'auto'")
    return settings.accelerator


def _require_precision(settings: TrainingSection) -> None:
    """Refuse float16 where there is no GPU, before the run's folder is made."""
    if settings.precision == "16-mixed" and _accelerator(settings) != "cuda":
        raise ValueError(
            'training.precision = "16-mixed" is for CUDA GPUs, and this run is on a CPU, which computes float16 '
            'slowly or not at all; set it to "32-true" or "bf16-mixed"'
        )


def _graphs(recipe: Recipe) -> bool:
    """Whether CUDA graphs are used.

    They cannot exchange gradients with other processes, use sharded parameters, read the random state (activation
    checkpointing), scale a loss, or record a model that branches on data (`ModuleConfig.capturable`).
    """
    settings = recipe.training
    alone = settings.devices * settings.nodes == 1 and settings.strategy != "fsdp"
    plain = not settings.activation_checkpointing and settings.precision != "16-mixed"
    possible = alone and plain and _accelerator(settings) == "cuda"
    if settings.graphs is True and not possible:
        raise ValueError(
            "training.graphs = true needs one CUDA device, and not FSDP, activation checkpointing or 16-mixed; leave "
            "it at 'auto'"
        )
    if settings.graphs is True and not recipe.capturable:
        raise ValueError(
            "training.graphs = true needs a model that a CUDA graph can record: one decoder, and parts whose "
            "configuration says capturable = True; leave it at 'auto'"
        )
    return (possible and recipe.capturable) if settings.graphs == "auto" else settings.graphs


def _finish(fitting: TrainingModule, trainer: lightning.Trainer) -> None:
    """Keep the average of the last checkpoints, or the best single one, whichever scores higher on validation.

    Every process takes part: each evaluates a share, and a model of one's own has the kept weights on all of them.
    """
    run, standing, corpora, task = fitting.run, fitting.standing, fitting.corpora, fitting.task
    trainer.strategy.barrier()  # the first process has written the last snapshots
    device = trainer.strategy.root_device
    # A new model, of a recipe: with FSDP the trained one is sharded.
    model: Any = task.model(corpora.tokenizers, corpora.train)
    if model is not fitting.model:  # `precision` may have cast the trained one
        model = model.to(next(fitting.model.parameters()).dtype)
    model = model.to(device).eval()
    model.load_state_dict(fitting.snapshots.average())
    _, averaged = fitting.validated(model, trainer.global_rank, trainer.world_size)
    count = len(fitting.snapshots)
    kept = f"the average of the last {count} checkpoints" if count > 1 else "the last checkpoint"
    if averaged < standing.best:
        model.load_state_dict(fitting.snapshots.best())
        kept = f"the checkpoint of update {standing.best_update:,}"
    best = max(averaged, standing.best)
    model.cpu()
    trainer.strategy.barrier()  # the others have read the snapshots, and `resume` may remove them
    if not trainer.is_global_zero:
        return
    with replacing_folder(run.model) as unfinished:
        model.save_pretrained(unfinished, card=task.model_card(kept, best, Provenance(run.folder).card()))
        corpora.tokenizers.save(unfinished)
    fitting.bar.say(
        f"averaged: {task.shown(averaged)}; best single: {task.shown(standing.best)}. Kept {kept}, in {run.model}"
    )


def _quiet() -> None:
    """Hide Lightning's remarks about loaders and devices: a recipe has no such settings."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning_fabric)(\.|$)")
