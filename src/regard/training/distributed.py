"""Several processes that train one model: how they start, share an update, shard a model and end.

DDP copies the model to every process and averages the gradients. FSDP2, PyTorch's `fully_shard` (Zhao et al. 2023,
arXiv 2304.11277), leaves 1/n of every parameter, its gradient and its moments on each: the parameters of a layer are
gathered before its forward and its backward pass, and its gradients are averaged and scattered after them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from ..files import make_folder, sha256, sync
from ..messages import count_of
from .checkpoint import SHARDS
from .device import accelerator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from torch import Tensor

    from ..models.decoder import Loss
    from .recipe_sections import TrainingSection

    OwnLoss = Callable[[Any, Any], Loss]

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""Ctrl-C; the end of a job; and what Slurm sends before pre-emption (`#SBATCH --signal=USR1@120`). Windows has two."""
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""Environment variables with the number of times that torchrun or Slurm started the same command again."""
CONNECTION = re.compile(r"connect|socket|peer|gloo|nccl|/pair\.cc|store", re.IGNORECASE)
"""In what a process group raises when another process is gone."""
TIMEOUT = timedelta(minutes=30)
"""In which all processes reach a collective: the others wait for the first one, which prepares the data."""


# Signals


class Signals:
    """Signals that ask a run to end. While updates are made, the loop finishes one and saves it; else all ends at once.

    `received` is the first signal that came while updates were made; a second one ends the process at once. After
    `ignore` nothing does. `restore` brings back the handlers from before.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.at_once = True
        self._previous: dict[signal.Signals, Any] = {}
        self._process = 0

    def install(self) -> None:
        """Python runs handlers in the main thread only; in another thread nothing is installed."""
        if threading.current_thread() is threading.main_thread():
            self._process = os.getpid()
            self._previous = {number: signal.getsignal(number) for number in SIGNALS}
            for number in SIGNALS:
                signal.signal(number, self._receive)

    def ignore(self) -> None:
        """All is done, and the process ends by itself."""
        if self._process == os.getpid():
            ignore_signals()

    def restore(self) -> None:
        if self._process == os.getpid():
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def flags(self) -> list[float]:
        """1 for the one of `SIGNALS` that was received, and 0 for the others."""
        return [float(number == self.received) for number in SIGNALS]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A forked process inherits the handler and has nothing to save.
        if self.at_once or self.received is not None or os.getpid() != self._process:
            raise SystemExit(128 + number)
        self.received = signal.Signals(number)


def ignore_signals(worker: int = 0) -> None:
    """For a process that ends by itself: one whose work is done, or a worker of a DataLoader (`worker_init_fn`).

    A signal to the whole process group must not end the workers: the main process needs them to finish the update.
    They end with it: PyTorch's workers check that it is there.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def first_signal(counts: list[float]) -> signal.Signals | None:
    """The signal that some process received, by the sums of `flags` over all of them: the same one for each process."""
    return next((number for number, count in zip(SIGNALS, counts, strict=True) if count), None)


# Who started this process


@dataclass(frozen=True)
class Place:
    """This process among those that torchrun or Slurm started."""

    launcher: str
    rank: int
    local_rank: int  # on this machine
    world: int


def place() -> Place | None:
    """None for a process that nobody started as one of several."""
    environment = os.environ
    started = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else ""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if (
        not started
        and "SLURM_NTASKS" in environment
        and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive")
    ):
        started, names = "Slurm", ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
    if not started:
        return None
    rank, local_rank, world = (int(environment.get(name, "0")) for name in names)
    return Place(started, rank, local_rank, world)


def is_first_process() -> bool:
    """Whether this is the first of all processes, which makes the run's folder."""
    here = place()
    return here is None or here.rank == 0


def restarted() -> bool:
    """Whether torchrun (`--max-restarts`) or Slurm (`--requeue`) runs this command again after a failure."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in RESTARTS)


def check_processes(settings: TrainingSection) -> None:
    """Whether as many processes were started as the recipe says, or can be.

    The recipe decides, since all processes share a batch: another number of processes is another run.
    """
    here, wanted = place(), settings.devices * settings.nodes
    if here is not None and here.world != wanted:
        raise ValueError(
            f"{here.launcher} started {count_of(here.world, 'process', 'processes')}, and the recipe is for "
            f"training.devices = {settings.devices} on each of training.nodes = {settings.nodes}; make them agree"
        )
    if here is None and settings.nodes > 1:
        raise ValueError(f"training.nodes = {settings.nodes}: start the command on each of them with torchrun or srun")
    if here is None and wanted > 1:
        raise ValueError(
            f"training.devices = {settings.devices} needs a process for each device, which torchrun starts: "
            f"torchrun --standalone --nproc-per-node {settings.devices} -m regard train … (or your own program)"
        )


def batch_remark(settings: TrainingSection, changed: dict[str, list[Any]]) -> str | None:
    """What another number of processes means for the batches of a run that continues."""
    before, after = 1, 1
    for key in ("devices", "nodes", "accumulate"):
        new = getattr(settings, key)
        before, after = before * changed.get(f"training.{key}", [new])[0], after * new
    if before == after:
        return None
    now = count_of(after, "batch", "batches")
    return (
        f"an update takes {now} from here on, and took {before} so far: the product of training.devices, "
        "training.nodes and training.accumulate changed; with the same product the run continues as before"
    )


# The processes of a run


class Processes:
    """All processes of a run, seen from one of them; with a single one, nothing waits for anybody."""

    def __init__(self, settings: TrainingSection, continuation: str) -> None:
        """Join them. `continuation` is the command or the call that continues the run."""
        here, kind = place() or Place("", 0, 0, settings.devices), accelerator(settings)
        self.rank, self.world, self.continuation = here.rank, here.world, continuation
        self.sharded = settings.strategy == "fsdp"
        self.device = torch.device(kind, here.local_rank) if kind == "cuda" else torch.device(kind)
        if kind == "cuda":
            torch.cuda.set_device(self.device)
        if self.world == 1 and not self.sharded:
            return
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.devices))
        from ..seeing.corpus import leave_groups_at_exit

        leave_groups_at_exit()
        if not distributed.is_initialized():
            _join(here, "nccl" if kind == "cuda" else "gloo")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            distributed.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """The value of every process."""
        values = [value] * self.world
        if self.world > 1:
            distributed.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any) -> Any:
        """The value of the first process."""
        values = [value]
        if self.world > 1:
            distributed.broadcast_object_list(values)
        return values[0]

    def barrier(self) -> None:
        self.broadcast(None)

    def end_together(self, signals: Signals) -> None:
        """Wait for all. Where one of them has received a signal, all end with the same exit status."""
        counts = self.sum(torch.tensor(signals.flags(), device=self.device))
        if (received := first_signal(counts.tolist())) is not None:
            raise SystemExit(128 + received)

    def loss(self, model: Any, smoothing: float, own: OwnLoss | None = None) -> Callable[..., Loss]:
        """The loss of this process's batches, whose backward pass averages the gradients over all processes.

        It is `model.loss`, or one's `own(model, batch)`.
        """
        single = BatchLoss(model, smoothing, own)
        if self.world == 1 or self.sharded:
            return single
        return nn.parallel.DistributedDataParallel(single)

    def exchanges(self, model: Any, loss: Any, last: bool) -> AbstractContextManager[None]:
        """Context of a batch: gradients are exchanged in the last one of an update only."""
        if self.sharded:
            model.set_requires_gradient_sync(last)
        elif self.world > 1 and not last:
            return loss.no_sync()  # type: ignore[no-any-return]
        return nullcontext()

    @contextmanager
    def lost_process_errors(self, update: Callable[[], int]) -> Iterator[None]:
        """Turn what a process group raises when a process is gone into a `LostProcessError`.

        Its backends raise a plain RuntimeError for every error of a connection, so every one of several processes is
        told the same, with the reason as it was given.
        """
        try:
            yield
        except RuntimeError as error:
            if self.world == 1:
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            where = f"process {self.rank} of {self.world} (counted from 0) stopped after update {update():,}"
            how = f"Continue from the last checkpoint with: {self.continuation}"
            if not CONNECTION.search(reason):
                raise LostProcessError(f"{where}: {reason}. {how}") from error
            ended = "another process ended: see its message; one without a message was killed, perhaps because memory "
            message = f"{where}, since {ended}ran out. {how}. The process group reported: {reason}"
            raise LostProcessError(message) from error


class LostProcessError(OSError):
    """A process of the run failed, or another one ended and this one cannot continue without it."""


class BatchLoss(nn.Module):
    """The loss of a batch as a forward pass, which DDP needs."""

    def __init__(self, model: nn.Module, smoothing: float, own: OwnLoss | None) -> None:
        super().__init__()
        self.model, self.smoothing, self.own = model, smoothing, own

    def forward(self, batch: Any) -> Loss:
        if self.own is not None:
            return self.own(self.model, batch)
        return self.model.loss(batch, smoothing=self.smoothing)  # type: ignore[no-any-return, operator]


def _join(here: Place, backend: str) -> None:
    environment, method = os.environ, "env://"
    store: Any = None
    if here.world == 1:
        store = distributed.HashStore()  # type: ignore[attr-defined]
    elif here.launcher == "Slurm":
        hosts = re.sub(r"\[(.*?)[,-].*?\]|\[(.*?)\]", r"\1\2", environment.get("SLURM_NODELIST", "127.0.0.1"))
        host = environment.get("MASTER_ADDR") or re.split("[ ,]", hosts)[0]
        port = environment.get("MASTER_PORT") or str(15_000 + int(environment.get("SLURM_JOB_ID", "0")[-4:]))
        method = f"tcp://{host}:{port}"
    elif environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and restarted():
        # torchrun keeps its store between attempts, with the addresses of the processes that are gone: PyTorch's own
        # initialisation would wait for them without end. So each attempt has names of its own.
        at = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        shared = distributed.TCPStore(*at, here.world, is_master=False)  # type: ignore[attr-defined]
        attempt = f"attempt-{environment['TORCHELASTIC_RESTART_COUNT']}"
        store = distributed.PrefixStore(attempt, shared)  # type: ignore[attr-defined]
    distributed.init_process_group(
        backend,
        init_method=None if store is not None else method,
        store=store,
        rank=here.rank,
        world_size=here.world,
        timeout=TIMEOUT,
    )


# Sharded models


def shard_model(model: nn.Module, processes: Processes) -> None:
    """Shard a model in place. Each Transformer layer is a unit, and the rest of the model is another.

    `model.loss` becomes a forward pass of FSDP. Parameters, gathered parameters and gradients stay in their own type:
    mixed precision is autocast's, as without FSDP.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    from ..layers.transformer import TransformerLayer

    _register_loss()
    mesh = init_device_mesh(processes.device.type, (processes.world,))
    for module in list(model.modules()):
        if isinstance(module, TransformerLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss")


@cache
def _register_loss() -> None:
    """FSDP prepares the backward pass at the tensors of a result, which it must find in it."""
    import torch.export

    from ..models.decoder import Loss

    torch.export.register_dataclass(Loss)


def local_tensors(tensors: list[Tensor]) -> list[Tensor]:
    """This process's part of each."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@torch.no_grad()
def copy_whole(model: nn.Module, whole: nn.Module) -> None:
    """Copy the weights of a sharded model into one that is whole. Every process must call this."""
    to = whole.state_dict()
    for name, tensor in model.state_dict().items():
        to[name].copy_(_whole(tensor))


def whole_weights(model: nn.Module, *, keep: bool) -> tuple[dict[str, Tensor], bool]:
    """The state dict with whole tensors on the CPU, and whether all of its numbers are finite.

    Every process must call this. Only those with `keep` get the tensors. Names of one parameter share one tensor.
    """
    names: dict[str, str] = {}  # name → the first name of the same parameter
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    weights: dict[str, Tensor] = {}
    finite = True
    for name, tensor in model.state_dict().items():
        if names.get(name, name) != name:
            continue
        whole = _whole(tensor)
        finite = finite and bool(whole.isfinite().all())
        if keep:
            weights[name] = whole.detach().cpu().clone()
    if keep:
        weights |= {name: weights[other] for name, other in names.items()}
    return weights, finite


def save_shards(checkpoints: Path, update: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Write weights and moments into checkpoints/shards-N/, each process its part; the SHA-256 of every file.

    `torch.distributed.checkpoint` writes and reads them, so that another number of processes can resume. Its own format
    has pickled metadata; safetensors has none, and nothing in a checkpoint is executed. The folder becomes part of a
    checkpoint when last.ckpt and checksums.json name it, after all of it is on the disk. Every process calls this.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    folder, rank = checkpoints / f"{SHARDS}{update:08d}", distributed.get_rank()
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        make_folder(folder)
    distributed.barrier()
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _shard_errors(folder):
        save(_sharded_tensors(model, optimizer), storage_writer=writer)
    written = {f"{folder.name}/{file.name}": sha256(file) for file in folder.glob(f"shard-{rank + 1:05d}-*")}
    sync(folder)
    parts: list[dict[str, str]] = [{}] * distributed.get_world_size()
    distributed.all_gather_object(parts, written)
    return {name: digest for part in parts for name, digest in part.items()}


def load_shards(checkpoints: Path, update: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read what `save_shards` wrote, perhaps with another number of processes. Every process calls this."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            step = torch.zeros((), device=parameter.device if group["fused"] else "cpu")
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": step, **moments}
    folder = checkpoints / f"{SHARDS}{update:08d}"
    with _shard_errors(folder):
        load(_sharded_tensors(model, optimizer), storage_reader=HuggingFaceStorageReader(str(folder)))


@contextmanager
def _shard_errors(folder: Path) -> Iterator[None]:
    """PyTorch's error names what failed on each process, but is no `Exception`."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        reasons = "; ".join(f"process {rank}: {failure[0]}" for rank, failure in error.failures.items())
        raise OSError(f"{folder} could not be written or read: {reasons}") from error


def _sharded_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters, buffers and moments by name. A tied table has one name: its first."""
    parameters = dict(model.named_parameters())
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    tensors = {f"model.{name}": state[name] for name in state if name in parameters or name not in every}
    for name, parameter in parameters.items():
        for part, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{part}"] = value
    return tensors


def checkpoint_activations(model: nn.Module) -> None:
    """Let Transformer layers compute their activations again in the backward pass, in place (Chen et al. 2016).

    Memory falls from all activations of all layers to those of one layer and the input of each; the price is a second
    forward pass (arXiv 1604.06174). Dropout draws the same numbers both times.
    """
    from torch.utils.checkpoint import checkpoint

    from ..layers.transformer import TransformerLayer

    layers = [module for module in model.modules() if isinstance(module, TransformerLayer)]
    if not layers:
        raise ValueError(
            "training.activation_checkpointing = true is for Transformer layers, and this model has none; set it to "
            "false"
        )
    for layer in layers:
        object.__setattr__(layer, "forward", partial(checkpoint, layer.forward, use_reentrant=False))
