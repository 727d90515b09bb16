"""A matrix that a loop multiplies with at every step, whose gradient is one product when the loop is done.

Step t of a recurrence computes y_t = x_t Mᵀ. Autograd would compute one small product g_tᵀ x_t per step and add it to
what is there: T small products and T additions of a matrix as large as M. The sum over t is one product,

    dM = Σ_t g_tᵀ x_t = [g_1; …; g_T]ᵀ [x_1; …; x_T],

so the steps only note x_t and g_t, and the product is done once, when the backward pass has left the loop. The same
holds for keys, values and annotations that every step looks at, with one matrix per sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention.torch_transforms import exact

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class BackwardPass:
    """What belongs to one backward pass: what a pass that broke off left behind does not count in the next."""

    _task = -1

    def begins(self) -> bool:
        """Whether this is another pass than that of the last question."""
        last, self._task = self._task, torch._C._current_graph_task_id()
        return last != self._task


class GradientPairs(BackwardPass):
    """What the steps have noted so far."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def add(self, x: Tensor, g: Tensor) -> None:
        if self.begins():
            self._pairs = []
        self._pairs.append((x, g))

    def take(self) -> list[tuple[Tensor, Tensor]]:
        taken = [] if self.begins() else self._pairs
        self._pairs = []
        return taken


def collects(ctx: Any) -> bool:
    """Will this backward pass come to the node that collects, the second input's?

    Not where someone asks for the gradient of an activation alone, as saliency does; what a step notes then would be
    counted twice by the next pass. Only the engine knows (`needs_input_grad` does not); PyTorch's own
    `register_multi_grad_hook` asks it this way too.
    """
    return torch._C._will_engine_execute_node(ctx.next_functions[1][0])


class _Collect(torch.autograd.Function):
    """Stands between the matrix and its uses: autograd comes here when it has passed through every step."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, bias: Tensor | None, notes: GradientPairs) -> Tensor:
        ctx.notes, ctx.like, ctx.biased = notes, matrix.new_empty(0), bias is not None
        ctx.shape = matrix.shape
        return matrix.new_empty(0)  # an edge in the graph, nothing to compute with

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        notes = ctx.notes.take()
        if not notes:  # no step led to the loss
            return ctx.like.new_zeros(ctx.shape), None, None
        x = torch.cat([x for x, _ in notes], dim=-2)  # [..., steps · rows, in]
        g = torch.cat([g for _, g in notes], dim=-2)  # [..., steps · rows, out]
        with exact(g.device):
            return g.mT @ x, g.sum(-2) if ctx.biased else None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edge: Tensor, matrix: Tensor, bias: Tensor | None, notes: GradientPairs) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.notes = notes
        return _product(x, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, matrix = ctx.saved_tensors
        if collects(ctx):
            ctx.notes.add(x, g)
        with exact(g.device):
            return (g @ matrix if ctx.needs_input_grad[0] else None), g.new_empty(0), None, None, None


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """In the precision of the matrix: a loop's dtypes are chosen where it begins, not by autocast at each step."""
    with exact(x.device):
        if matrix.dim() == 2:
            return torch.nn.functional.linear(x, matrix, bias)
        return x @ matrix.mT if bias is None else torch.baddbmm(bias[..., None, :], x, matrix.mT)


class DeferredLinear:
    """x ↦ x Mᵀ (+ b) for one loop: make it before the loop, call it at every step."""

    def __init__(self, matrix: Float[Tensor, "*batch out in"], bias: Float[Tensor, "*batch out"] | None = None) -> None:
        self._given = matrix, bias
        self.matrix, self.bias = matrix.detach(), None if bias is None else bias.detach()
        self._notes = GradientPairs()
        learns = torch.is_grad_enabled() and (matrix.requires_grad or (bias is not None and bias.requires_grad))
        self._edge = _Collect.apply(matrix, bias, self._notes) if learns else None

    def __call__(self, x: Float[Tensor, "*batch rows in"]) -> Float[Tensor, "*batch rows out"]:
        x = x.to(self.matrix.dtype)
        if self._edge is None:
            return _product(x, self.matrix, self.bias)
        y: Tensor = _Product.apply(x, self._edge, self.matrix, self.bias, self._notes)
        return y

    def select(self, rows: Int[Tensor, "chosen"]) -> DeferredLinear:
        """The same for these entries of the batch, where there is one matrix per entry."""
        matrix, bias = self._given
        return DeferredLinear(matrix[rows], None if bias is None else bias[rows])
