"""Additive attention on the GPU, in Triton: which kernels a call takes. They run on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..chunked_attention_triton import intervals
from . import additive_backward_triton as many_backward
from . import additive_few_queries_triton as few
from . import additive_forward_triton as many

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


def forward(
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    *,
    start: Int[Tensor, "_ _"] | None,
    stop: Int[Tensor, "_ _"] | None,
    scale: float,
    dropout: float,
    seed: Int[Tensor, ""] | None,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output and log-sum-exp; +∞ marks a row that sees no key."""
    start, stop = intervals(start, stop, *a.shape[:2])
    run = few.forward if few.applies(a, v) else many.forward
    return run(a, b, w, v, start, stop, scale, dropout, seed)


def backward(
    grad: Float[Tensor, "n q d_v"],
    grad_lse: Float[Tensor, "n q"] | None,
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    out: Float[Tensor, "n q d_v"],
    lse: Float[Tensor, "n q"],
    *,
    start: Int[Tensor, "_ _"] | None,
    stop: Int[Tensor, "_ _"] | None,
    scale: float,
    dropout: float,
    seed: Int[Tensor, ""] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w and v, each in its tensor's dtype. No gradient of the log-sum-exp is one of zeros."""
    start, stop = intervals(start, stop, *a.shape[:2])
    out, lse = out.contiguous(), lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    run = few.backward if few.applies(a, v) else many_backward.backward
    return run(grad, grad_lse, a, b, w, v, out, lse, start, stop, scale, dropout, seed)
