"""CUDA graphs for training: the loss and its gradients of a batch, recorded once per shape and replayed.

A step of a small model is a few hundred short kernels, which take longer to launch than to run. A graph launches them
all at once. Graphs need fixed shapes, so batches come from a small set of shapes (`Batches(fixed_shapes=True)`).
Recording one takes about as long as a few steps.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...data.batch import Batch
from ...models import Loss

if TYPE_CHECKING:
    from torch import Tensor


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
