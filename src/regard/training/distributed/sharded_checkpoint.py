"""The tensors of a sharded run in checkpoints/shards-N/: each process writes its part, as safetensors.

`torch.distributed.checkpoint` writes and reads them, so that another number of processes can resume. Its own format
has pickled metadata; safetensors has none, and nothing in a checkpoint is executed.

A folder becomes part of a checkpoint when last.ckpt and the manifest name it, after all of it is on the disk. Whatever
a killed process leaves behind is not named there, and is removed later.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ...atomic_write import make_folder, sync
from ...checksums import sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from torch import Tensor, nn

PREFIX = "shards-"


def shard_folder(checkpoints: Path, update: int) -> Path:
    return checkpoints / f"{PREFIX}{update:08d}"


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Write weights and moments; returns the SHA-256 of every file, named relative to checkpoints/.

    Every process calls this.
    """
    rank = torch.distributed.get_rank()
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        make_folder(folder)
    torch.distributed.barrier()
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _failures(folder):
        save(_tensors(model, optimizer), storage_writer=writer)
    written = {f"{folder.name}/{file.name}": sha256(file) for file in folder.glob(f"shard-{rank + 1:05d}-*")}
    sync(folder)
    parts: list[dict[str, str]] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, written)
    return {name: digest for part in parts for name, digest in part.items()}


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read what `save_shards` wrote, perhaps with another number of processes. Every process calls this."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            step = torch.zeros((), device=parameter.device if group["fused"] else "cpu")
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": step, **moments}
    with _failures(folder):
        load(_tensors(model, optimizer), storage_reader=HuggingFaceStorageReader(str(folder)))


def remove_shards(checkpoints: Path, needed: Collection[str]) -> None:
    """Remove every folder of shards that has none of the `needed` files."""
    kept = {name.split("/")[0] for name in needed}
    for folder in checkpoints.glob(f"{PREFIX}*"):
        if folder.name not in kept:
            shutil.rmtree(folder)


@contextmanager
def _failures(folder: Path) -> Iterator[None]:
    """PyTorch's error names what failed on each process, but is no `Exception`."""
    try:
        yield
    except CheckpointException as error:
        reasons = "; ".join(f"process {rank}: {failure[0]}" for rank, failure in error.failures.items())
        raise OSError(f"{folder} could not be written or read: {reasons}") from error


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters, buffers and moments by name. A tied table has one name: its first."""
    parameters = dict(model.named_parameters())
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    tensors = {f"model.{name}": state[name] for name in state if name in parameters or name not in every}
    for name, parameter in parameters.items():
        for part, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{part}"] = value
    return tensors
