"""Second derivatives of kernels that have a first one only: from the formula.

A kernel's backward is no formula that autograd could differentiate. Where a graph of the gradients is built
(`create_graph=True`), they are therefore computed from the formula instead, which has derivatives of every order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..torch_transforms import traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    TwoTensors = Callable[..., tuple[Tensor, Tensor]]


def differentiable_again(out: Tensor, formula: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`out`, a kernel's `formula(*inputs)`, with the kernel's gradient and the formula's second derivatives."""
    if not out.requires_grad or traced():
        return out
    return _Again.apply(formula, out, *inputs)  # type: ignore[no-any-return]


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, formula: Callable[..., Tensor], out: Tensor, *inputs: Tensor) -> Tensor:
        ctx.formula = formula
        ctx.save_for_backward(*inputs)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        if not torch.is_grad_enabled():
            return (None, grad, *[None] * len(needed))
        # Tensors of their own: one that is given twice has two gradients.
        own = [x.view_as(x) for x in ctx.saved_tensors]
        wanted = [x for x, need in zip(own, needed, strict=True) if need]
        gradients = torch.autograd.grad(ctx.formula(*own), wanted, grad, create_graph=True, allow_unused=True)
        remaining = iter(gradients)
        return (None, None, *(next(remaining) if need else None for need in needed))


def with_graph_apart(function: TwoTensors, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """`function(*inputs)` with a graph that only its own backward walks; its second result has no gradient.

    A compiled function refuses to be part of a graph that is differentiated twice, or walked twice. Here the graph
    outside has one operation, whose backward walks the inner graph once, and where it is asked again computes it again.
    The function gets tensors of its own, and may use no others that require a gradient.
    """
    return _GraphApart.apply(function, *inputs)  # type: ignore[no-any-return]


class _GraphApart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: TwoTensors, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        ctx.function = function
        ctx.set_materialize_grads(False)  # the formula may have computed the gradient: then there is none here
        ctx.save_for_backward(*inputs)
        ctx.leaves, ctx.out, other = _inner_graph(function, inputs, ctx.needs_input_grad[1:])
        other = other.detach()
        ctx.mark_non_differentiable(other)
        return ctx.out.detach(), other

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        if grad is None:
            return (None, *[None] * len(needed))
        leaves, out = ctx.leaves, ctx.out
        ctx.leaves = ctx.out = None
        if out is None:
            leaves, out, _other = _inner_graph(ctx.function, ctx.saved_tensors, needed)
        wanted = [x for x, need in zip(leaves, needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(out, wanted, grad, allow_unused=True))
        return (None, *(next(gradients) if need else None for need in needed))


def _inner_graph(
    function: TwoTensors, inputs: tuple[Tensor, ...], needed: tuple[bool, ...]
) -> tuple[list[Tensor], Tensor, Tensor]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
        return leaves, *function(*leaves)
