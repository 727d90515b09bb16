"""Additive attention on the GPU, in Triton: which kernels a call takes. They run on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import attention_from_energies_triton
from . import additive_backward_triton as many_queries
from . import additive_few_queries_triton as few_queries
from . import additive_short_sequences_triton as short_sequences
from .additive_energies_triton import energies, padded, side

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from .. import KernelArguments
    from ..matrix_pieces_triton import Spans


def forward(
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    *,
    options: KernelArguments,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output and log-sum-exp; +∞ marks a row that sees no key."""
    options = options.expand(*a.shape[:2])
    if few_queries.applies(a, v):
        return few_queries.launches.forward(a, b, w, v, options)
    if short_sequences.applies(a, v):
        return short_sequences.launches.forward(a, b, w, v, options)
    left, right, weight, keys = side(a, True), side(b, True), padded(w), slice(0, b.shape[1])

    def piece(m: slice, i: slice, spans: Spans | None, e: Tensor) -> None:
        energies(left.part(m, i), right.part(m, keys), weight, spans, options.scale, e)

    return attention_from_energies_triton.forward(piece, a.shape[1], v, options)


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
    options: KernelArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w and v, each in its tensor's dtype. No gradient of the log-sum-exp is one of zeros."""
    b = options.without_hidden(b)
    inputs = (grad, None if grad_lse is None else grad_lse.contiguous(), a, b, w, v, out.contiguous(), lse.contiguous())
    options = options.expand(*a.shape[:2])
    if few_queries.applies(a, v):
        return few_queries.launches.backward(*inputs, options)
    if short_sequences.applies(a, v):
        return short_sequences.launches.backward(*inputs, options)
    return many_queries.backward(*inputs, options)
