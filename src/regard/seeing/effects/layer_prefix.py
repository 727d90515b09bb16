"""Layers that a later change cannot reach: their outputs are taken from an earlier run of the same inputs."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..capture.module_depth import named_parts
from .model_inputs import first_tensor, repeated, without_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn


class LayerPrefix:
    """The outputs of a stack of layers, each of which reads the output of the one before it and nothing later.

    A run that changes layer l needs none of the layers below: `skipped` replaces their forward by what they gave.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._runs: list[tuple[str, nn.Module, Tensor | None, Any]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Inside the block, the outputs of all layers are recorded."""
        self._runs.clear()
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
            self._runs.append((name, module, first_tensor((*args, *kwargs.values())), output))

        return hook

    def keep_layers_of(self, modules: list[str]) -> None:
        """Keep the layers that contain these attention modules, if they are one stack; otherwise nothing is skipped."""
        runs = [run for run in self._runs if any(name.startswith(f"{run[0]}.") for name in modules)]
        names = [run[0] for run in runs]
        outer = [run for run in runs if not any(run[0].startswith(f"{name}.") for name in names)]
        stacks, layers = {run[0].rpartition(".")[0] for run in outer}, {run[0] for run in outer}
        one_stack = len(stacks) == 1 and len(layers) == len(outer)
        chained = all(
            following[2] is not None and following[2] is first_tensor(run[3]) for run, following in pairwise(outer)
        )
        kept = outer if one_stack and chained else []
        self._runs = [(name, module, None, without_graph(output)) for name, module, _, output in kept]

    def depth(self, module: str) -> int:
        """How many layers run before that of an attention module; 0 if none can be skipped."""
        return next((at for at, run in enumerate(self._runs) if module.startswith(f"{run[0]}.")), 0)

    @contextmanager
    def skipped(self, count: int, batch: int, times: int) -> Iterator[None]:
        """Inside the block, the first `count` layers return what they gave, for the batch repeated `times` times."""
        skipped = self._runs[:count]
        before = [vars(module).get("forward") for _, module, _, _ in skipped]
        try:
            for _, module, _, output in skipped:
                module.forward = _constant(output, batch, times)
            yield
        finally:
            for (_, module, _, _), forward in zip(skipped, before, strict=True):
                if forward is None:
                    vars(module).pop("forward", None)
                else:
                    module.forward = forward


def _constant(output: Any, batch: int, times: int) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return repeated(output, batch, times)

    return forward
