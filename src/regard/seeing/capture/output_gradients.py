"""Gradients of the outputs of calls, ∂L/∂o: hooks on the tensors that the model goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor


def _same(g: Tensor) -> Tensor:
    return g


def _start_graph(x: Tensor) -> None:
    """Let the graph for gradients begin at x.

    As a leaf, the model could not change it in place afterwards. So it becomes the result of an addition to none of
    its numbers. A view stays a leaf: PyTorch loses the hooks of a view whose base is changed in place.
    """
    if x._is_view():
        x.requires_grad_()
    else:
        x[:0].add_(x.new_zeros(()).requires_grad_())


class GraphOutput(NamedTuple):
    """The output of a call as the model goes on to use it, with its graph."""

    tensor: Tensor
    arrange: Callable[[Tensor], Tensor] = _same
    """From the gradient of `tensor` to that of W·v, [*batch, T_q, D_v]."""


class OutputGradients:
    """The gradients of one call's outputs, one for each step, of the last backward pass.

    A hook keeps no graph alive, and needs no other backward pass than the one the caller runs.
    """

    def __init__(self, name: str, store: Callable[[Tensor], Tensor]) -> None:
        self._name = name
        self._store = store
        self._steps: list[Tensor | None] = []
        self._missing = ""

    def follow(self, output: GraphOutput | None) -> None:
        """Keep the gradient of this output, that of the next step, when a backward pass computes it."""
        step = len(self._steps)
        self._steps.append(None)
        if output is None:
            self._missing = "this way of computing attention does not expose its output with a graph"
            return
        tensor, arrange = output
        if torch.is_grad_enabled() and not tensor.requires_grad and not tensor.is_inference():
            _start_graph(tensor)  # no parameter needs a gradient
        if not tensor.requires_grad:
            self._missing = "the model ran without a graph, under torch.no_grad or torch.inference_mode"
            return

        def keep(gradient: Tensor) -> None:
            try:
                with torch.no_grad():
                    self._steps[step] = self._store(arrange(gradient.detach()))
            except Exception as error:  # an error of ours must not stop the backward pass
                self._missing = f"it could not be kept: {error}"

        tensor.register_hook(keep)

    def joined(self) -> Float[Tensor, "*batch q d_v"]:
        """The gradients of all steps, one below the other."""
        steps = [x for x in self._steps if x is not None]
        if not steps or self._missing:
            reason = self._missing or "no backward pass reached it; call loss.backward()"
            raise ValueError(f"{self._name} has no gradient: {reason}")
        if len(steps) < len(self._steps):
            raise ValueError(f"{self._name}: a backward pass reached {len(steps)} of its {len(self._steps)} steps")
        return steps[0] if len(steps) == 1 else torch.cat(steps, dim=-2)
