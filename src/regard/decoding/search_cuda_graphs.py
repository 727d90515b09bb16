"""Beam search in CUDA graphs: several steps of a search are one launch.

A step of a small decoder is about a hundred short kernels, which take longer to launch than to run. A graph launches
eight steps at once, and then the host checks whether all sentences have ended. Graphs have fixed shapes, so sentences
and source places are rounded up; the sentences that fill a batch end in their first step. Recording takes about as
long as a search, so a shape is recorded when it comes the second time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.nn import functional as F
from torch.nn.modules import module as torch_modules

from ..attention.attend import listeners
from ..models.configurations import Annotations
from ..models.decoder import Decoder
from .beam import STEPS, Beam, BeamLoop, History

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from .beam import Hypothesis, Ranking

SHAPES = 16  # that are kept for each decoder; the one that was used longest ago is dropped
BYTES = 2 << 30  # of GPU memory that the recordings of a decoder may hold
PLACES = 8  # places of the source are rounded up to a multiple of this


def recordable(decoder: Decoder[Any]) -> bool:
    """Whether a search by this decoder does nothing but launch kernels: what a graph would not repeat is not allowed.

    Hooks, listeners and a `forward` that was replaced would not be called, and modes of PyTorch would not see the
    operations.
    """
    parameter = next(decoder.parameters(), None)
    return (
        parameter is not None
        and parameter.is_cuda
        and bool(getattr(getattr(decoder, "config", None), "capturable", False))
        and not listeners
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
        and torch._C._len_torch_function_stack() == 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch_modules._global_forward_hooks
        and not torch_modules._global_forward_pre_hooks
        and not any(
            module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
            for module in decoder.modules()
        )
    )


@dataclass(frozen=True)
class SearchShape:
    """What decides the kernels of a search and their arguments."""

    sizes: tuple[tuple[int, ...] | None, ...]  # of the tensors of the annotations
    dtype: torch.dtype
    parameters: tuple[int, ...]  # where they are: a graph reads them there
    steps: int
    beams: int
    best: int
    ranking: Ranking


class SearchGraphs:
    """The recorded searches of one decoder."""

    def __init__(self) -> None:
        self._recordings: OrderedDict[SearchShape, _Recording | None] = OrderedDict()
        self._lock = Lock()  # a recording has one set of buffers
        self._pool: Any = None

    def search(
        self,
        decoder: Decoder[Any],
        annotations: Annotations,
        limits: Int[Tensor, "batch"],
        steps: int,
        ranking: Ranking,
        *,
        beams: int,
        best: int,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of every sentence after at most `steps` steps, best first."""
        count, steps = len(limits), round_steps(steps, decoder.most_steps)
        annotations, limits = round_up(annotations, limits)
        tensors = (getattr(annotations, field.name) for field in fields(annotations) if field.name != "parts")
        shape = SearchShape(
            tuple(None if x is None else tuple(x.shape) for x in tensors),
            annotations.vectors.dtype,
            tuple(x.data_ptr() for x in (*decoder.parameters(), *decoder.buffers())),
            steps,
            beams,
            best,
            ranking,
        )
        # Not in inference mode: buffers made there could not be written outside it.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            history = self._history(shape, decoder, annotations, limits)
            self._drop_oldest()
            return history.best(best)[:count]

    def _history(self, shape: SearchShape, decoder: Decoder[Any], annotations: Annotations, limits: Tensor) -> History:
        known, recording = shape in self._recordings, self._recordings.pop(shape, None)
        if not known:  # this run also compiles and initialises what a recording needs
            self._recordings[shape] = None
            return _Loop(annotations, limits, shape).run(decoder)
        if recording is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            recording = _Recording(_Loop(annotations, limits, shape), self._pool)
        history = recording.run(decoder, annotations, limits)
        self._recordings[shape] = recording  # last, and only now: a recording that failed is not kept
        return history

    def _drop_oldest(self) -> None:
        while len(self._recordings) > SHAPES or sum(x.bytes for x in self._recordings.values() if x) > BYTES:
            self._recordings.popitem(last=False)


_graphs: WeakKeyDictionary[Decoder[Any], SearchGraphs] = WeakKeyDictionary()


def graphs_of(decoder: Decoder[Any]) -> SearchGraphs:
    return _graphs.setdefault(decoder, SearchGraphs())


def release_graphs(model: torch.nn.Module) -> None:
    """Free the memory of the recorded searches of all decoders of a model."""
    for module in model.modules():
        if isinstance(module, Decoder):
            _graphs.pop(module, None)


def round_steps(steps: int, most: int | None) -> int:
    """So that limits of like length share a recording: a multiple of the steps of a graph."""
    steps += -steps % STEPS
    return steps if most is None else min(steps, most)


def round_up(annotations: Annotations, limits: Int[Tensor, "batch"]) -> tuple[Annotations, Int[Tensor, "batch"]]:
    """More places, which are padding, and more sentences, of one place, that must end in their first step."""
    batch, places = annotations.vectors.shape[:2]
    unit = 1 << max(0, batch.bit_length() - 3)  # at most a quarter more
    sentences, more = -batch % unit, -places % PLACES
    vectors, tape, source = annotations.vectors, annotations.tape, annotations.source
    sizes = (0, 0, 0, more, 0, sentences)
    padded = Annotations(
        F.pad(vectors, sizes),
        F.pad(annotations.lengths, (0, sentences), value=1),
        F.pad(annotations.summary, (0, 0, 0, sentences)),
        None if tape is None else F.pad(tape, sizes),
        None if annotations.decoder is None else F.pad(annotations.decoder, (0, sentences)),
        None if source is None else F.pad(source, sizes[2:]),
    )
    return padded, F.pad(limits, (0, sentences))


class _Loop:
    """A search on fixed tensors, a few steps at a time."""

    def __init__(self, annotations: Annotations, limits: Tensor, shape: SearchShape) -> None:
        self.annotations, self.limits, self.shape = annotations, limits, shape
        self.history = History(shape.steps, len(limits), shape.beams, limits.device)
        self.steps_done = 0
        self._loop: BeamLoop | None = None

    def run(self, decoder: Decoder[Any]) -> History:
        while not bool(self.advance(decoder)) and self.steps_done < self.shape.steps:
            pass
        return self.history

    def advance(self, decoder: Decoder[Any]) -> Tensor:
        """The next steps; whether all sentences have ended after them."""
        loop = self._loop = self._loop or self._begin(decoder)
        for _ in range(min(STEPS, self.shape.steps - self.steps_done)):
            at = loop.at
            self.history.write(at, loop.sentences, loop.step())
            self.steps_done += 1
        return loop.done().all()

    def _begin(self, decoder: Decoder[Any]) -> BeamLoop:
        shape, places = self.shape, None
        if shape.ranking.coverage:
            width = self.annotations.vectors.shape[1]
            places = torch.arange(width, device=self.limits.device) < self.annotations.lengths[:, None]
        self.history.clear()
        beam = Beam.start(self.limits, shape.beams, shape.best, places, apart=False)
        state = decoder.start(self.annotations, beams=shape.beams, steps=shape.steps)
        return BeamLoop(decoder, state, beam, shape.ranking)


class _Recording:
    """The graphs of a loop, made one after the other as searches get that far."""

    def __init__(self, loop: _Loop, pool: Any) -> None:
        self._loop, self._pool = loop, pool
        # Copies: the search before this one may have been given the same tensors.
        loop.annotations = loop.annotations.select(torch.arange(len(loop.limits), device=loop.limits.device))
        loop.limits = loop.limits.clone()
        self._graphs: list[tuple[torch.cuda.CUDAGraph, Tensor]] = []
        self.bytes = 0  # that it holds on the GPU

    def run(self, decoder: Decoder[Any], annotations: Annotations, limits: Tensor) -> History:
        loop = self._loop
        for field in fields(annotations):
            if isinstance(own := getattr(loop.annotations, field.name), torch.Tensor):
                own.copy_(getattr(annotations, field.name))
        loop.limits.copy_(limits)
        number = 0
        while number * STEPS < loop.shape.steps:
            if number == len(self._graphs):
                before, graph = torch.cuda.memory_allocated(), torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                    done = loop.advance(decoder)
                self._graphs.append((graph, done))
                self.bytes += torch.cuda.memory_allocated() - before
            graph, done = self._graphs[number]
            graph.replay()
            number += 1
            if bool(done):
                break
        return loop.history
