"""The op `regard::distance`: softmax(−scale |a_i − b_j|² / 2) · v, or 1/|a_i − b_j| by its sum, in O(T) memory.

For GPUs only (`distance_attention_triton.py`, imported when first needed): on a CPU the formula in blocks is as fast.
`attention` is what callers use: it takes the shortest way to the kernel that their surroundings allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor  # at run time too: torch.library reads the annotations

from ...torch_transforms import plain
from .. import KernelArguments

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx


@torch.library.custom_op("regard::distance", mutates_args=(), device_types="cuda")
def distance(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    """a [n, q, d], b [n, k, d], v [n, k, d_v] → output [n, q, d_v] and row state [n, q].

    The state is the log-sum-exp, where `inverse` the sum. Query i sees keys start_i ≤ j < stop_i ([n or 1, q or 1],
    both or neither). Dropout repeats with its seed.
    """
    from . import distance_attention_triton

    return distance_attention_triton.forward(
        a, b, v, options=KernelArguments(start, stop, seed, scale, dropout), inverse=inverse
    )


@torch.library.custom_op("regard::distance_backward", mutates_args=(), device_types="cuda")
def distance_backward(
    grad: Tensor,
    grad_state: Tensor,
    a: Tensor,
    b: Tensor,
    v: Tensor,
    out: Tensor,
    state: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
    inverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from . import distance_attention_triton

    options = KernelArguments(start, stop, seed, scale, dropout)
    return distance_attention_triton.backward(grad, grad_state, a, b, v, out, state, options=options, inverse=inverse)


@distance.register_fake
def _(a: Tensor, b: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(a.shape[0], a.shape[1], v.shape[2]), a.new_empty(a.shape[:2], dtype=torch.float32)


@distance_backward.register_fake
def _(grad: Tensor, grad_state: Tensor, a: Tensor, b: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(x.new_empty(x.shape) for x in (a, b, v))  # type: ignore[return-value]


def _setup(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]  # type: ignore[attr-defined]
    ctx.set_materialize_grads(False)  # nobody differentiates the row state: no zeros for it


def _gradients(ctx: Any, grad: Tensor | None, grad_state: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None and grad_state is None:
        return (None,) * 9  # the formula computes the gradient (`second_derivatives.py`)
    a, b, v, start, stop, seed, out, state = ctx.saved_tensors
    grad = torch.zeros_like(out) if grad is None else grad
    grad_state = torch.zeros_like(state) if grad_state is None else grad_state
    gradients = distance_backward(grad, grad_state, a, b, v, out, state, start, stop, seed, *ctx.rest)
    return (*gradients, *[None] * 6)


def _refused(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError('the distance kernel has no second derivative; use attend(..., backend="reference")')


distance.register_autograd(_gradients, setup_context=_setup)
distance_backward.register_autograd(_refused)


class _Direct(torch.autograd.Function):
    """The kernels without the dispatcher, which takes longer than they do for a thousand tokens."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        from . import distance_attention_triton

        outputs = distance_attention_triton.forward(
            *inputs[:3], options=KernelArguments(*inputs[3:8]), inverse=inputs[8]
        )
        _setup(ctx, inputs, outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_state: Tensor | None) -> tuple[Tensor | None, ...]:
        from . import distance_attention_triton

        if torch.is_grad_enabled():  # a graph of the gradients is wanted, which the formula has
            return _gradients(ctx, grad, grad_state)
        a, b, v, start, stop, seed, out, state = ctx.saved_tensors
        grad = torch.zeros_like(out) if grad is None else grad
        *rest, inverse = ctx.rest
        options = KernelArguments(start, stop, seed, *rest)
        return (
            *distance_attention_triton.backward(
                grad, grad_state, a, b, v, out, state, options=options, inverse=inverse
            ),
            *[None] * 6,
        )


def attention(a: Tensor, b: Tensor, v: Tensor, options: KernelArguments, inverse: bool) -> tuple[Tensor, Tensor]:
    """What `distance` gives, under torch.compile and autograd alike."""
    inputs = (a, b, v, *options, inverse)
    if not plain(a, b, v):
        return distance(*inputs)  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or v.requires_grad):
        return _Direct.apply(*inputs)  # type: ignore[no-any-return]
    from . import distance_attention_triton

    return distance_attention_triton.forward(a, b, v, options=options, inverse=inverse)
