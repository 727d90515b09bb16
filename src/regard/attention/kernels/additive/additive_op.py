"""The op `regard::additive`: softmax(scale · w·tanh(a_i + b_j)) · v, with its log-sum-exp, in O(T) memory.

One schema, one implementation per device: `additive_cpu.py` and `additive_gpu.py`, imported when first needed.
`attention` is what callers use: it takes the shortest way to the kernel that their surroundings allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor  # at run time too: torch.library reads the annotations

from ...torch_transforms import plain, transformed
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
    from . import additive_gpu

    return additive_gpu.forward(*inputs[:4], options=KernelArguments(*inputs[4:]))


def _backward_gpu(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from . import additive_gpu

    return additive_gpu.backward(*inputs[:8], options=KernelArguments(*inputs[8:]))


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
    ctx.set_materialize_grads(False)


def _backward_inputs(ctx: Any, grad: Tensor, grad_lse: Tensor | None) -> tuple[Any, ...]:
    a, b, w, v, start, stop, seed, out, lse = ctx.saved_tensors
    return grad, grad_lse, a, b, w, v, out, lse, start, stop, seed, ctx.scale, ctx.dropout


def _gradients(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None and grad_lse is None:
        return (None,) * 9  # the formula computes the gradient (`second_derivatives.py`)
    return (*additive_backward(*_backward_inputs(ctx, *_materialized(ctx, grad, grad_lse))), *[None] * 5)


def _materialized(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor, Tensor]:
    *_, out, lse = ctx.saved_tensors
    return torch.zeros_like(out) if grad is None else grad, torch.zeros_like(lse) if grad_lse is None else grad_lse


def _refused(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError('the additive kernel has no second derivative; use attend(..., backend="reference")')


additive.register_autograd(_gradients, setup_context=_setup)
additive_backward.register_autograd(_refused)


def _one_by_one(op: Any, info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> Any:
    parts = [
        op(*(x.select(d, at) if d is not None else x for x, d in zip(args, in_dims, strict=True)))
        for at in range(info.batch_size)
    ]
    outputs = tuple(torch.stack(x) for x in zip(*parts, strict=True))
    return outputs, (0,) * len(outputs)


def _mapped(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    """The mapped dimension joins the batch, which the op has anyway; only a mapped `w` or `seed` cannot."""
    a, b, w, v, start, stop, seed, scale, dropout = args
    size: int = info.batch_size
    if in_dims[2] is not None or in_dims[6] is not None:
        return _one_by_one(additive, info, in_dims, args)
    count = max(x.shape[1 if d == 0 else 0] for x, d in zip((a, b, v), (*in_dims[:2], in_dims[3]), strict=True))

    def joined(x: Tensor | None, d: int | None) -> Tensor | None:
        if x is None:
            return None
        x = x.movedim(d, 0) if d is not None else x.expand(size, *x.shape)
        return x.expand(size, count, *x.shape[2:]).flatten(0, 1)

    a, b, v, start, stop = map(joined, (a, b, v, start, stop), (*in_dims[:2], *in_dims[3:6]))
    outputs = additive(a, b, w, v, start, stop, seed, scale, dropout)
    return tuple(x.unflatten(0, (size, count)) for x in outputs), (0, 0)


additive.register_vmap(_mapped)


def _backward_mapped(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    # One by one: the gradient of `w` is summed over the batch, and here each mapped entry wants its own.
    return _one_by_one(additive_backward, info, in_dims, args)


additive_backward.register_vmap(_backward_mapped)


class TransformableAdditive(torch.autograd.Function):
    """The same op for torch.func.grad and its kin, which cannot see a gradient registered with torch.library."""

    forward = staticmethod(additive)
    setup_context = staticmethod(_setup)
    vmap = staticmethod(_mapped)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs = _backward_inputs(ctx, *_materialized(ctx, grad, grad_lse))
        return (*_TransformableBackward.apply(*inputs), *[None] * 5)


class _TransformableBackward(torch.autograd.Function):
    forward = staticmethod(additive_backward)
    vmap = staticmethod(_backward_mapped)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    backward = staticmethod(_refused)


class _Direct(torch.autograd.Function):
    """The GPU's kernels without the dispatcher, which takes longer than a decoder's step does."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *tensors, scale, dropout = inputs
        outputs = _forward_gpu(*inputs)
        ctx.save_for_backward(*tensors, *outputs)
        ctx.scale, ctx.dropout = scale, dropout
        ctx.set_materialize_grads(False)  # mostly nobody differentiates the log-sum-exp: no zeros for it then
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a graph of the gradients is wanted, which the formula has
            return _gradients(ctx, grad, grad_lse)
        grad = torch.zeros_like(ctx.saved_tensors[-2]) if grad is None else grad
        return (*_backward_gpu(*_backward_inputs(ctx, grad, grad_lse)), *[None] * 5)


def attention(a: Tensor, b: Tensor, w: Tensor, v: Tensor, options: KernelArguments) -> tuple[Tensor, Tensor]:
    """What `additive` gives, under torch.compile, torch.func and autograd alike."""
    inputs = (a, b, w, v, *options)
    if transformed():
        return TransformableAdditive.apply(*inputs)  # type: ignore[no-any-return]
    if not (a.is_cuda and plain(a, b, w, v)):
        return additive(*inputs)  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or w.requires_grad or v.requires_grad):
        return _Direct.apply(*inputs)  # type: ignore[no-any-return]
    return _forward_gpu(*inputs)
