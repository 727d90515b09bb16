"""Lightning's trainer for a run: device, strategy and precision."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TYPE_CHECKING

from .device_settings import accelerator
from .metric_loggers import metric_loggers

if TYPE_CHECKING:
    import pytorch_lightning as lightning
    from pytorch_lightning.plugins.precision import Precision
    from pytorch_lightning.strategies import Strategy

    from ..recipe.recipe_sections import TrainingSection
    from ..run.run_folder import Run

FIRST_SCALE = 2.0**16
"""Of the mean loss of a batch in float16; it is adapted while training."""


def make_trainer(run: Run) -> lightning.Trainer:
    import pytorch_lightning as lightning

    settings = run.recipe.training
    precision = settings.precision
    if precision == "auto":
        precision = "bf16-mixed" if accelerator(settings) == "cuda" else "32-true"
    scaled = precision == "16-mixed"
    return lightning.Trainer(
        accelerator=accelerator(settings),
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=_strategy(settings, run.continuation),
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


def _strategy(settings: TrainingSection, continuation: str) -> str | Strategy:
    world = settings.devices * settings.nodes
    if settings.strategy == "fsdp":
        from ..distributed.sharded_strategy import ShardedStrategy

        return ShardedStrategy(world, continuation)
    interactive = hasattr(sys, "ps1")  # there Lightning forks
    if settings.strategy == "ddp" or (world > 1 and not interactive):
        from ..distributed.child_processes import DataParallelStrategy

        return DataParallelStrategy(continuation)
    return settings.strategy


def hide_remarks() -> None:
    """Hide Lightning's remarks about loaders and devices: a recipe has no such settings."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning_fabric)(\.|$)")
