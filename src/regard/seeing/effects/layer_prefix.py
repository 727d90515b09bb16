"""Layers that a later change cannot reach: their outputs are taken from an earlier run of the same inputs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...attention.tensor_versions import TensorVersions
from ..capture.module_depth import named_parts
from .model_inputs import all_tensors, first_tensor, repeated, without_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn


_lock = threading.RLock()
"""Held while layers are skipped: threads that skip layers of one model do so one after the other."""


@dataclass(slots=True, eq=False)
class _LayerRun:
    """One run of a layer: its first input and its output, by reference, and the versions of the output's tensors."""

    name: str
    module: nn.Module
    first_input: Tensor | None
    output: Any
    versions: TensorVersions

    def is_unchanged(self) -> bool:
        """Whether the output is still what the layer gave; not known of inference tensors, which have no version."""
        return not self.versions.changed() and not any(x.is_inference() for x in self.versions.tensors)


class LayerPrefix:
    """The outputs of a stack of layers, each of which reads the output of the one before it and nothing later.

    A run that changes layer l needs none of the layers below: `skipped` replaces their forward by what they gave.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._runs: list[_LayerRun] = []
        self._kept: list[tuple[str, nn.Module, Any]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Inside the block, the outputs of all layers are recorded."""
        self._runs, self._kept = [], []
        handles = [
            part.register_forward_hook(self._hook(name), with_kwargs=True)
            for name, part in named_parts(self._model)
            if name.rpartition(".")[2].isdecimal()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            versions = TensorVersions(all_tensors(output))
            self._runs.append(_LayerRun(name, module, first_tensor((*args, *kwargs.values())), output, versions))

        return hook

    def keep_layers_of(self, modules: list[str]) -> None:
        """Keep the layers that contain these attention modules, if they are one stack; otherwise nothing is skipped.

        Nothing is skipped either if the model changed the output of a layer in place.
        """
        runs = [run for run in self._runs if any(name.startswith(f"{run.name}.") for name in modules)]
        names = [run.name for run in runs]
        outer = [run for run in runs if not any(run.name.startswith(f"{name}.") for name in names)]
        stacks, layers = {run.name.rpartition(".")[0] for run in outer}, {run.name for run in outer}
        one_stack = len(stacks) == 1 and len(layers) == len(outer)
        chained = all(
            following.first_input is not None and following.first_input is first_tensor(run.output)
            for run, following in pairwise(outer)
        )
        unchanged = all(run.is_unchanged() for run in outer)
        kept = outer if one_stack and chained and unchanged else []
        self._kept = [(run.name, run.module, without_graph(run.output)) for run in kept]
        self._runs = []

    def depth(self, module: str) -> int:
        """How many layers run before that of an attention module; 0 if none can be skipped."""
        return next((at for at, (name, _, _) in enumerate(self._kept) if module.startswith(f"{name}.")), 0)

    @contextmanager
    def skipped(self, count: int, batch: int, times: int) -> Iterator[None]:
        """Inside the block, the first `count` layers return what they gave, for the batch repeated `times` times.

        Other threads that run the model meanwhile compute these layers.
        """
        skipped = self._kept[:count]
        with _lock:
            before = [vars(module).get("forward") for _, module, _ in skipped]
            try:
                for _, module, output in skipped:
                    module.forward = _constant(output, batch, times, module.forward)
                yield
            finally:
                for (_, module, _), forward in zip(skipped, before, strict=True):
                    if forward is None:
                        vars(module).pop("forward", None)
                    else:
                        module.forward = forward


def _constant(output: Any, batch: int, times: int, computed: Any) -> Any:
    """A forward that returns a repeated output in this thread, and what `computed` returns in others."""
    thread = threading.get_ident()

    def forward(*args: Any, **kwargs: Any) -> Any:
        return repeated(output, batch, times) if threading.get_ident() == thread else computed(*args, **kwargs)

    return forward
