"""The processes of a run: how many a launcher started, whether it started them again, and what is left if one ends."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...noun_count import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytorch_lightning as lightning

    from ..recipe.recipe_sections import TrainingSection

RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""Environment variables with the number of times that torchrun or Slurm started the same command again."""


CONNECTION = re.compile(r"connect|socket|peer|gloo|nccl|/pair\.cc|store", re.IGNORECASE)
"""In what a process group raises when another process is gone."""
LOOK = 5.0
"""Seconds in which the first process looks for the one that ended."""


class LostProcessError(OSError):
    """A process of the run failed, or another one ended and this one cannot continue without it."""

    def __init__(
        self, rank: int, world: int, update: int, continuation: str, error: Exception, ended: str | None = None
    ) -> None:
        self.reason = " ".join(str(error).split()) or type(error).__name__
        place = f"process {rank} of {world} (counted from 0) stopped after update {update:,}"
        how = f"Continue from the last checkpoint with: {continuation}"
        if ended is not None:
            message = f"{place}, since {ended}. {how}. The process group reported: {self.reason[:300]}"
        elif CONNECTION.search(self.reason):
            message = (
                f"{place}, since another process ended: see its message; one without a message was killed, perhaps "
                f"because memory ran out. {how}. The process group reported: {self.reason[:300]}"
            )
        else:
            message = f"{place}: {self.reason[:300]}. {how}"
        super().__init__(message)


@contextmanager
def lost_process_errors(trainer: lightning.Trainer, continuation: str) -> Iterator[None]:
    """Turn what a process group raises when a process is gone into a `LostProcessError`.

    Its backends raise a plain RuntimeError for every error of a connection, so every one of several processes is told
    the same, with the reason as it was given. `continuation` is what continues the run.
    """
    from .child_processes import ProcessLauncher

    try:
        yield
    except RuntimeError as error:
        if trainer.world_size == 1:
            raise
        place = trainer.global_rank, trainer.world_size, trainer.global_step
        launcher, ended = trainer.strategy.launcher, None
        if isinstance(launcher, ProcessLauncher) and CONNECTION.search(str(error)):
            ended = launcher.first_ended(LOOK)  # the connection may be closed before the process has ended
        raise LostProcessError(*place, continuation, error, ended) from error


def batch_remark(settings: TrainingSection, changed: dict[str, list[Any]]) -> str | None:
    """What another number of processes means for the batches of a run that continues."""
    keys = ("devices", "nodes", "accumulate")
    before, after = 1, 1
    for key in keys:
        new = getattr(settings, key)
        before, after = before * changed.get(f"training.{key}", [new])[0], after * new
    if before == after:
        return None
    now = count_of(after, "batch", "batches")
    return (
        f"an update takes {now} from here on, and took {before} so far: the product of training.devices, "
        "training.nodes and training.accumulate changed; with the same product the run continues as before"
    )


def restarted() -> bool:
    """Whether torchrun (`--max-restarts`) or Slurm (`--requeue`) runs this command again after a failure."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in RESTARTS)


def join_restarted_group(accelerator: str) -> None:
    """Make the process group of an attempt after the first, under names of its own.

    torchrun keeps its store between attempts, with the addresses of the processes that are gone, and PyTorch's own
    initialisation would wait for them without end. Lightning uses a group that exists.
    """
    import torch
    from torch import distributed

    environment = os.environ
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT") or "0"
    shared = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and environment.get("WORLD_SIZE", "1") != "1"
    if attempt == "0" or not shared or distributed.is_initialized():
        return
    world = int(environment["WORLD_SIZE"])
    place = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = distributed.TCPStore(*place, world, is_master=False)  # type: ignore[attr-defined]
    if accelerator == "cuda":
        torch.cuda.set_device(int(environment["LOCAL_RANK"]))
    distributed.init_process_group(
        "nccl" if accelerator == "cuda" else "gloo",
        store=distributed.PrefixStore(f"attempt-{attempt}", store),  # type: ignore[attr-defined]
        rank=int(environment["RANK"]),
        world_size=world,
    )


def check_processes(settings: TrainingSection) -> None:
    """Whether torchrun or Slurm started as many processes as the recipe says.

    The recipe decides, since all processes share a batch: another number of processes is another run.
    """
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if TorchElasticEnvironment.detect():  # first, as Lightning does: torchrun under Slurm is torchrun
        launcher, started = "torchrun", int(os.environ["WORLD_SIZE"])
    elif SLURMEnvironment.detect():
        launcher, started = "Slurm", int(os.environ["SLURM_NTASKS"])
    else:
        return
    if started != settings.devices * settings.nodes:
        raise ValueError(
            f"{launcher} started {count_of(started, 'process', 'processes')}, and the recipe is for training.devices = "
            f"{settings.devices} on each of training.nodes = {settings.nodes}; make them agree"
        )
