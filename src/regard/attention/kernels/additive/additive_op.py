"""The op `regard::additive`: softmax(scale · w·tanh(a_i + b_j)) · v, with its log-sum-exp, in O(T) memory.

One schema, one implementation per device, that of the GPU imported when first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor  # at run time too: torch.library reads the annotations

from .. import KernelArguments
from . import additive_cpu

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx


@torch.library.custom_op("regard::additive", mutates_args=(), device_types="cpu")
def additive(
    a: Tensor,
    b: Tensor,
    w: Tensor,
    v: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """a [n, q, d], b [n, k, d], w [d], v [n, k, d_v] → output [n, q, d_v] and log-sum-exp [n, q].

    Query i sees keys start_i ≤ j < stop_i ([n or 1, q or 1], both or neither). Dropout repeats with its seed.
    """
    options = KernelArguments(start, stop, seed, scale, dropout)
    out, lse = additive_cpu.forward(*(_wide(x) for x in (a, b, w, v)), options=options)
    return out.to(v.dtype), lse


@torch.library.custom_op("regard::additive_backward", mutates_args=(), device_types="cpu")
def additive_backward(
    grad: Tensor,
    grad_lse: Tensor,
    a: Tensor,
    b: Tensor,
    w: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = KernelArguments(start, stop, seed, scale, dropout)
    gradients = additive_cpu.backward(*(_wide(x) for x in (grad, grad_lse, a, b, w, v)), options=options)
    return tuple(g.to(x.dtype) for g, x in zip(gradients, (a, b, w, v), strict=True))  # type: ignore[return-value]


def _forward_gpu(*inputs: Any) -> tuple[Tensor, Tensor]:
    from . import additive_triton

    return additive_triton.forward(*inputs[:4], options=KernelArguments(*inputs[4:]))


def _backward_gpu(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from . import additive_triton

    return additive_triton.backward(*inputs[:8], options=KernelArguments(*inputs[8:]))


additive.register_kernel("cuda", _forward_gpu)
additive_backward.register_kernel("cuda", _backward_gpu)


def _wide(x: Tensor) -> Tensor:
    """float32 at least, contiguous (tiles are cut from the front)."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()


@additive.register_fake
def _(a: Tensor, b: Tensor, w: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    state = torch.promote_types(a.dtype, torch.float32)
    return v.new_empty(a.shape[0], a.shape[1], v.shape[2]), a.new_empty(a.shape[:2], dtype=state)


@additive_backward.register_fake
def _(grad: Tensor, grad_lse: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b, w, v = (x.new_empty(x.shape) for x in inputs[:4])
    return a, b, w, v


def _setup(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, scale, dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.scale, ctx.dropout = scale, dropout  # type: ignore[attr-defined]


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    a, b, w, v, start, stop, seed, out, lse = ctx.saved_tensors
    gradients = additive_backward(grad, grad_lse, a, b, w, v, out, lse, start, stop, seed, ctx.scale, ctx.dropout)
    return (*gradients, *[None] * 5)


additive.register_autograd(_gradients, setup_context=_setup)


def attention(a: Tensor, b: Tensor, w: Tensor, v: Tensor, options: KernelArguments) -> tuple[Tensor, Tensor]:
    return additive(a, b, w, v, *options)  # type: ignore[no-any-return]
