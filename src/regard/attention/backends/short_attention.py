"""Attention of short sequences in bfloat16 on a CPU, with gradients: batched products instead of PyTorch's kernel.

The kernel multiplies each sentence and head on its own, and its backward pass computes the weights again. Sentences of
a training batch have so few weights that they can be kept: T numbers for each query, no more than a head is wide.
Products with the weights and with their gradients are in bfloat16; energies and the gradients of the weights, whose
differences count, in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from jaxtyping import BFloat16, Bool, Float
    from torch import Tensor

LONGEST = 64
"""Queries and keys. For longer ones the weights are more numbers than queries, keys and values."""


def attend_short(
    q: BFloat16[Tensor, "batch heads queries d"],
    k: BFloat16[Tensor, "batch heads keys d"],
    v: BFloat16[Tensor, "batch heads keys width"],
    mask: Bool[Tensor, "#batch #heads #queries keys"] | None,
    scale: float,
    *,
    is_causal: bool,
) -> BFloat16[Tensor, "batch heads queries width"] | None:
    """softmax(scale · q kᵀ) v; None where a query sees no key, whose output the kernel makes zero."""
    bias = None
    if is_causal:
        bias = torch.full((q.shape[2], k.shape[2]), -torch.inf, device=q.device).triu_(1)
    elif mask is not None:
        if not bool(mask.any(-1).all()):
            return None
        bias = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf)
    out: Tensor = _ShortAttention.apply(q, k, v, bias, scale)
    return out


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        rows = q.shape[:2]
        with torch.autocast("cpu", enabled=False):
            e = torch.bmm(_float_rows(q), _float_rows(k).mT).unflatten(0, rows).mul_(scale)
            if bias is not None:
                e += bias
            p = _softmax(e).flatten(0, 1)
            out: Tensor = torch.bmm(p.to(v.dtype), v.flatten(0, 1)).unflatten(0, rows)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p = ctx.saved_tensors
        # reshape, because a gradient that stands for several (is_grads_batched=True) has no flatten.
        narrow = g.reshape(len(p), *g.shape[-2:])
        with torch.autocast("cpu", enabled=False):
            into_v = torch.bmm(p.to(v.dtype).mT, narrow)
            into_p = torch.bmm(narrow.float(), _float_rows(v).mT)
            into_e = _softmax_gradient(into_p, p).mul_(ctx.scale).to(q.dtype)
            into_q, into_k = torch.bmm(into_e, k.flatten(0, 1)), torch.bmm(into_e.mT, q.flatten(0, 1))
        return into_q.reshape(q.shape), into_k.reshape(k.shape), into_v.reshape(v.shape), None, None


VECTOR = 16
"""PyTorch's softmax of rows with fewer numbers than this computes one number after the other, six times as long."""


def _softmax(e: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """softmax(e), of which e is overwritten."""
    if e.shape[-1] >= VECTOR or not e.numel():
        return torch.softmax(e, -1)
    p = e.sub_(e.amax(-1, keepdim=True)).exp_()
    return p.div_(p.sum(-1, keepdim=True))


def _softmax_gradient(g: Float[Tensor, "*rows keys"], p: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """The gradient of e, from that of p = softmax(e): p ⊙ g − p Σ_j p_j g_j."""
    if p.shape[-1] >= VECTOR:
        return torch._softmax_backward_data(g, p, -1, torch.float32)
    weighted = g * p
    return weighted.sub_(p * weighted.sum(-1, keepdim=True))


def _float_rows(x: Tensor) -> Float[Tensor, "rows time width"]:
    """In float32, batch and heads as one axis; conversion and change of layout are one pass over memory."""
    rows = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    return rows.copy_(x).flatten(0, 1)
