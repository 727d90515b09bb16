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
