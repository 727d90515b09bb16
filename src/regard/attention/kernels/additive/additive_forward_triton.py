"""Additive attention on the GPU, forward: out_i = Σ_j softmax_j(scale · w·tanh(a_i + b_j)) v_j, and its log-sum-exp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import chunked_attention_triton
from .additive_energies_triton import energies, padded, side

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..chunked_attention_triton import Spans


def forward(
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    start: Int[Tensor, "n q"] | None,
    stop: Int[Tensor, "n q"] | None,
    scale: float,
    dropout: float,
    seed: Int[Tensor, ""] | None,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output and log-sum-exp; +∞ marks a row that sees no key."""
    left, right, weight, keys = side(a, True), side(b, True), padded(w), slice(0, b.shape[1])

    def piece(m: slice, i: slice, spans: Spans | None, e: Tensor) -> None:
        energies(left.part(m, i), right.part(m, keys), weight, spans, scale, e)

    return chunked_attention_triton.forward(piece, a.shape[1], v, start, stop, dropout, seed)
