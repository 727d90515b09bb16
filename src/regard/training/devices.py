"""The devices of a run and its processes: precision, threads, CUDA graphs; how several processes share an update."""

from __future__ import annotations

import copy
import os
import re
import signal
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.autograd.function import once_differentiable

from ..data.batches import Batch
from ..models.decoder import Loss
from ..wording import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from torch import Tensor

    from .recipe import Recipe
    from .recipe_sections import TrainingSection

    OwnLoss = Callable[[Any, Any], Loss]

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
    parts = [part for name in ("encoder", "decoder") if (part := getattr(recipe, name, None)) is not None]
    narrow = any(part.recurrent for part in parts) and all(part.width <= NARROW for part in parts)
    threads = torch.get_num_threads()
    if narrow and accelerator(recipe.training) == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def accelerator(settings: TrainingSection) -> str:
    if settings.accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if settings.accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError("training.accelerator is 'cuda', and PyTorch finds no CUDA device here; leave it at 'auto'")
    return settings.accelerator


def require_precision(settings: TrainingSection) -> None:
    """Refuse float16 where there is no GPU, before the run's folder is made."""
    if settings.precision == "16-mixed" and accelerator(settings) != "cuda":
        raise ValueError(
            'training.precision = "16-mixed" is for CUDA GPUs, and this run is on a CPU, which computes float16 '
            'slowly or not at all; set it to "32-true" or "bf16-mixed"'
        )


def uses_graphs(recipe: Recipe) -> bool:
    """Whether CUDA graphs are used.

    They cannot exchange gradients with other processes, use sharded parameters, read the random state (activation
    checkpointing), scale a loss, or record a model that branches on data (`ModuleConfig.capturable`).
    """
    settings = recipe.training
    alone = settings.devices * settings.nodes == 1 and settings.strategy != "fsdp"
    plain = not settings.activation_checkpointing and settings.precision != "16-mixed"
    possible = alone and plain and not settings.loss and accelerator(settings) == "cuda"
    if settings.graphs is True and not possible:
        raise ValueError(
            "training.graphs = true needs one CUDA device, and not FSDP, activation checkpointing, 16-mixed or a "
            "training.loss; leave it at 'auto'"
        )
    if settings.graphs is True and not recipe.capturable:
        raise ValueError(
            "training.graphs = true needs a model that a CUDA graph can record: one decoder, and parts whose "
            "configuration says capturable = True; leave it at 'auto'"
        )
    return (possible and recipe.capturable) if settings.graphs == "auto" else settings.graphs


class Precision:
    """The types of numbers: float32, bfloat16 or float16 products by autocast, or float64.

    float16 has a scaled loss (Micikevicius et al. 2018): its gradients would else be rounded to zero. The loss is a sum
    over the tokens of a batch, so the first scale is for the mean of so many.
    """

    def __init__(self, settings: TrainingSection, device: torch.device) -> None:
        name = settings.precision
        if name == "auto":
            name = "bf16-mixed" if device.type == "cuda" else "32-true"
        self.device = device
        self.mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(name)
        self.double = name == "64-true"
        scale = FIRST_SCALE / settings.tokens
        self.scaler = torch.amp.GradScaler("cuda", init_scale=scale) if name == "16-mixed" else None

    @contextmanager
    def default_type(self) -> Iterator[None]:
        """Context in which new tensors of floating point numbers are float64 where the model is."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if self.double else before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward and the backward pass."""
        if self.mixed is None:
            return self.default_type() if self.double else nullcontext()
        return torch.autocast(self.device.type, self.mixed, cache_enabled=False)

    def scaled(self, total: Tensor) -> Tensor:
        return total if self.scaler is None else self.scaler.scale(total)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of the optimizer; with float16 it is left out where gradients are not finite, and the scale is cut."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()

    def moved(self, batch: Any) -> Any:
        """A batch on the device; its floating point numbers in float64 where the model is."""
        batch = moved(batch, self.device)
        if self.double:
            wide = lambda x: x.double() if x.is_floating_point() else x  # noqa: E731
            batch = changed(batch, lambda x: isinstance(x, torch.Tensor), wide)
        return batch


def moved(value: Any, device: torch.device) -> Any:
    """The same with everything that has a method `to` on the device."""
    return changed(value, lambda x: callable(getattr(x, "to", None)), lambda x: x.to(device))


def changed(value: Any, is_leaf: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """The same lists, tuples, dicts and dataclasses with changed leaves."""
    if is_leaf(value):
        return change(value)
    again = lambda part: changed(part, is_leaf, change)  # noqa: E731
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(again, value))
    if isinstance(value, list | tuple):
        return type(value)(map(again, value))
    if isinstance(value, Mapping):
        made: Any = copy.copy(value)
        for key in value:
            made[key] = again(value[key])
        return made
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, again(getattr(value, field.name)))
        return made
    return value


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # where the graph reads its batch
    total: Tensor
    nll: Tensor
    tokens: Tensor


class _Replayed(torch.autograd.Function):
    """A loss whose gradients are already computed: its backward adds them to `grad` of the parameters.

    The parameters are not its inputs. Otherwise their nodes in autograd's graph would live as long as the loss, on
    this stream, and the recording of the next shape, on another stream, would wait for them, which is not allowed.
    """

    @staticmethod
    def forward(ctx: Any, total: Tensor, anchor: Tensor, parameters: list[Tensor], gradients: list[Tensor]) -> Tensor:
        ctx.parameters, ctx.gradients = parameters, gradients
        return total.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[None, ...]:
        for parameter, gradient in zip(ctx.parameters, torch._foreach_mul(ctx.gradients, g), strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return None, None, None, None


class CudaGraphs:
    """`model.loss`, replayed: call it with a batch on the GPU, then `total.backward()` before the next call.

    All shapes share the buffers of the gradients; the next call overwrites them.
    """

    def __init__(self, model: Any, *, smoothing: float, autocast: torch.dtype | None = None) -> None:
        self.model, self.smoothing, self.autocast = model, smoothing, autocast
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._gradients = [torch.zeros_like(p) for p in self._parameters]
        # An input that needs a gradient, so that autograd calls `_Replayed.backward`.
        self._anchor = torch.zeros((), device=self._gradients[0].device, requires_grad=True)
        self._pool = torch.cuda.graph_pool_handle()
        self._recordings: dict[tuple[torch.Size, torch.Size], _Recording] = {}

    @property
    def shapes(self) -> int:
        """The number of recorded shapes."""
        return len(self._recordings)

    def __call__(self, batch: Batch) -> Loss:
        shape = (batch.source.shape, batch.target.shape)
        recording = self._recordings.get(shape)
        if recording is None:
            recording = self._recordings[shape] = self._record(batch)
        for name in ("source", "source_lengths", "target", "target_lengths"):
            getattr(recording.batch, name).copy_(getattr(batch, name))
        recording.graph.replay()
        total: Tensor = _Replayed.apply(recording.total, self._anchor, self._parameters, self._gradients)
        # Copies: the graphs share their memory, and the next replay writes over it.
        return Loss(total, recording.nll.clone(), recording.tokens.clone())

    def _record(self, batch: Batch) -> _Recording:
        static = Batch(*(getattr(batch, name).clone() for name in Batch.__dataclass_fields__))
        # A warm-up: the first calls initialise libraries and compile kernels, which a graph must not record. What it
        # changes (a baseline's average, the random state) is restored.
        before, random_state = [buffer.clone() for buffer in self.model.buffers()], torch.cuda.get_rng_state()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._loss_and_gradients(static)
        torch.cuda.current_stream().wait_stream(side)
        for buffer, value in zip(self.model.buffers(), before, strict=True):
            buffer.copy_(value)
        torch.cuda.set_rng_state(random_state)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._loss_and_gradients(static)
        return _Recording(graph, static, loss.total.detach(), loss.nll, loss.tokens)

    def _loss_and_gradients(self, batch: Batch) -> Loss:
        # No cache: the casts of the weights must be part of the graph.
        cast = nullcontext() if self.autocast is None else torch.autocast("cuda", self.autocast, cache_enabled=False)
        with cast:
            loss: Loss = self.model.loss(batch, smoothing=self.smoothing)
        gradients = torch.autograd.grad(loss.total, self._parameters, allow_unused=True, materialize_grads=True)
        torch._foreach_copy_(self._gradients, list(gradients))
        return loss


SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""Ctrl-C; the end of a job; and what Slurm sends before pre-emption (`#SBATCH --signal=USR1@120`). Windows has two."""
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""Environment variables with the number of times that torchrun or Slurm started the same command again."""
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
            raise LostProcessError(
                f"{where}: {reason}. Where another process ended, see its message; one without a message was killed, "
                f"perhaps because memory ran out. Continue from the last checkpoint with: {self.continuation}"
            ) from error


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

    torch.export.register_dataclass(Loss)


def local_tensors(tensors: list[Tensor]) -> list[Tensor]:
    """This process's part of each."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


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
