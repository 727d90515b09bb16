"""Linear maps inside a recurrent loop whose weight gradient is computed once, after the loop.

Step t of a recurrence computes y_t = x_t Mᵀ. Autograd would compute one small product g_tᵀ x_t per step and add it to
the gradient: T small products and T additions of a matrix as large as M. The sum over t is one product,

    dM = Σ_t g_tᵀ x_t = [g_1; …; g_T]ᵀ [x_1; …; x_T],

so the backward pass of a step only stores x_t and g_t, and the product is computed once, after all steps. The same
holds for keys and values that every step attends to, with one matrix per sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention.torch_transforms import exact, plain
from ..packed_linear import pack, pays, product

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class BackwardPass:
    """Base of what is collected in one backward pass; what an interrupted pass left is dropped by the next."""

    _task = -1

    def is_new_pass(self) -> bool:
        """Whether this is another pass than at the last call."""
        last, self._task = self._task, torch._C._current_graph_task_id()
        return last != self._task


class GradientPairs(BackwardPass):
    """The pairs (x_t, g_t) of the steps so far."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def add(self, x: Tensor, g: Tensor) -> None:
        if self.is_new_pass():
            self._pairs = []
        self._pairs.append((x, g))

    def take(self) -> list[tuple[Tensor, Tensor]]:
        pairs = [] if self.is_new_pass() else self._pairs
        self._pairs = []
        return pairs


def will_collect(ctx: Any) -> bool:
    """Whether this backward pass will reach the collecting node, that of the second input.

    It does not where only the gradient of an activation is computed, as for saliency; pairs stored then would be
    counted twice by the next pass. Only the engine knows (`needs_input_grad` does not); PyTorch's own
    `register_multi_grad_hook` asks it the same way.
    """
    return torch._C._will_engine_execute_node(ctx.next_functions[1][0])


class _Collect(torch.autograd.Function):
    """The node between the matrix and its uses: autograd visits it after the backward of every step."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, bias: Tensor | None, pairs: GradientPairs) -> Tensor:
        ctx.pairs, ctx.like, ctx.biased = pairs, matrix.new_empty(0), bias is not None
        ctx.shape = matrix.shape
        return matrix.new_empty(0)  # an edge of the graph without data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        pairs = ctx.pairs.take()
        if not pairs:  # no step contributed to the loss
            return ctx.like.new_zeros(ctx.shape), None, None
        x = torch.cat([x for x, _ in pairs], dim=-2)  # [..., steps · rows, in]
        g = torch.cat([g for _, g in pairs], dim=-2)  # [..., steps · rows, out]
        with exact(g.device):
            return g.mT @ x, g.sum(-2) if ctx.biased else None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edge: Tensor, matrix: Tensor, bias: Tensor | None, pairs: GradientPairs) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.pairs = pairs
        return _product(x, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, matrix = ctx.saved_tensors
        if will_collect(ctx):
            ctx.pairs.add(x, g)
        with exact(g.device):
            return (g @ matrix if ctx.needs_input_grad[0] else None), g.new_empty(0), None, None, None


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """In the dtype of the matrix: it is chosen once before the loop, not by autocast at each step."""
    with exact(x.device):
        if matrix.dim() == 2:
            return torch.nn.functional.linear(x, matrix, bias)
        return x @ matrix.mT if bias is None else torch.baddbmm(bias[..., None, :], x, matrix.mT)


class DeferredLinear:
    """x ↦ x Mᵀ (+ b) for one loop: make it before the loop, call it at every step."""

    def __init__(self, matrix: Float[Tensor, "*batch out in"], bias: Float[Tensor, "*batch out"] | None = None) -> None:
        self.matrix, self.bias = matrix.detach(), None if bias is None else bias.detach()
        self._pairs = GradientPairs()
        learns = torch.is_grad_enabled() and (matrix.requires_grad or (bias is not None and bias.requires_grad))
        self._edge = _Collect.apply(matrix, bias, self._pairs) if learns else None
        self._packed: Tensor | None = None  # for a loop without gradients, from its second step on
        self._has_run = False

    def __call__(self, x: Float[Tensor, "*batch rows in"]) -> Float[Tensor, "*batch rows out"]:
        x = x.to(self.matrix.dtype)
        if not torch.is_grad_enabled() and plain(x):
            faster = self._has_run and x.dim() == 2 and pays(len(x), self.matrix)
            self._has_run = True
            if faster and self._packed is None:
                self._packed = pack(self.matrix)
            if faster and self._packed is not None:
                return product(x, self._packed, self.bias)
        if self._edge is None:
            return _product(x, self.matrix, self.bias)
        y: Tensor = _Product.apply(x, self._edge, self.matrix, self.bias, self._pairs)
        return y
