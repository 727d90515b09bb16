"""What the device of a run decides: precision, threads, and CUDA graphs, in one place.

A step of a small model is a few hundred short kernels, which take longer to launch than to run. A CUDA graph launches
them all at once: the loss and its gradients of a batch are recorded once per shape and replayed. Graphs need fixed
shapes, so batches come from a small set of shapes (`Batches(fixed_shapes=True)`). Recording one takes about as long as
a few steps.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ..data.batches import Batch
from ..models.decoder import Loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from .recipe import Recipe
    from .recipe_sections import TrainingSection

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
