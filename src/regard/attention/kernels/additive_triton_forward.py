"""Additive attention on the GPU, forward: out_i = Σ_j softmax_j(scale · w·tanh(a_i + b_j)) v_j, and its log-sum-exp.

The energies are computed a bounded piece at a time (`pieces`), by a kernel that does nothing else and so has all
registers for it; a second kernel takes softmax and values from them, in one pass with a running maximum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from . import launch
from .additive_triton_energies import BLOCK, COMPILED, LN2, energies, padded, side, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Int
    from torch import Tensor

WORKSPACE = 1 << 24
"""Energies held at once: 64 MiB, or 4096 tiles, enough for some ten rounds of programs on the 132 SMs of an H200."""


@triton.jit
def kept(seed, n, i, j, dropout):
    """The dropout factor of weight (n, i, j), 0 or 1/(1 − dropout): a function of the seed and its place alone."""
    i = i + tl.zeros_like(j)
    word, _, _, _ = tl.philox(seed, j + tl.zeros_like(i), i, n.to(tl.int32), 0)
    return tl.where((word >> 8).to(tl.float32) * 2**-24 < dropout, 0.0, 1 / (1 - dropout))


@triton.jit
def _average(
    e, e_n, e_i, v, v_n, v_j, v_d, start, start_n, start_i, stop, stop_n, stop_i, spans, spans_n, seed,
    out, out_n, out_i, lse, lse_n, q, k, width, n0, i0, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    part, row_block, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = row_block * ROWS + tl.arange(0, ROWS)
    at = part * WIDE + tl.arange(0, WIDE)
    low = 0
    high = k
    if INTERVAL:
        first = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 0)[:, None]
        last = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)[:, None]
        span = spans + n * spans_n + 2 * (row_block * ROWS // BLOCK)
        low = tl.load(span) // BLOCK * BLOCK
        high = tl.minimum(tl.load(span + 1), k)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDE], tl.float32)
    for block in range(low, high, BLOCK):
        j = block + tl.arange(0, BLOCK)
        here = tl.load(e + n * e_n + i[:, None] * e_i + j[None, :])  # [ROWS, BLOCK]
        seen = (j < k)[None, :]
        if INTERVAL:
            seen = (j[None, :] >= first) & (j[None, :] < tl.minimum(last, k))
        here = tl.where(seen, here, float("-inf"))
        above = tl.maximum(top, tl.max(here, 1))
        # A row that has seen nothing yet: −∞ − 0 rather than −∞ + ∞.
        anchor = tl.where(above == float("-inf"), 0.0, above)
        p = tl.exp2(here - anchor[:, None])
        shrunk = tl.exp2(top - anchor)
        total = total * shrunk + tl.sum(p, 1)
        if DROPOUT:
            p *= kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        values = v + n * v_n + j.to(tl.int64)[:, None] * v_j + at[None, :] * v_d
        values = tl.load(values, (j < high)[:, None] & (at < width)[None, :], 0.0)  # [BLOCK, WIDE]
        if not COMPILED:
            values = values.to(tl.float32)  # the interpreter multiplies bfloat16 as the integers it stores them in
        # Three tensor-core products carry float32's digits; a single one keeps 11 bits.
        sums = tl.dot(p.to(values.dtype), values, sums * shrunk[:, None], input_precision="tf32x3")
        top = above
    empty = total == 0  # not so where there is a NaN
    out += n * out_n + i.to(tl.int64)[:, None] * out_i + at[None, :]
    result = sums / tl.where(empty, 1.0, total)[:, None]
    tl.store(out, result.to(out.dtype.element_ty), (i < q)[:, None] & (at < width)[None, :])
    state = tl.where(empty, float("inf"), (top + tl.log2(total)) * LN2)
    tl.store(lse + n * lse_n + i, state, (i < q) & (part == 0))


def strides(x: Tensor | None) -> tuple[int, ...]:
    return (0, 0) if x is None else x.stride()


def pieces(n: int, q: int, k: int) -> Iterator[tuple[slice, slice]]:
    """Cut n matrices of q × k into pieces of about WORKSPACE numbers: which matrices, which rows."""
    wide = triton.cdiv(k, BLOCK) * BLOCK
    tall = min(triton.cdiv(q, BLOCK), max(1, WORKSPACE // (wide * BLOCK))) * BLOCK
    deep = max(1, WORKSPACE // (wide * tall))
    for m in range(0, n, deep):
        for i in range(0, q, tall):
            yield slice(m, min(m + deep, n)), slice(i, min(i + tall, q))


def workspace(n: int, q: int, k: int, like: Tensor) -> Float[Tensor, "n q_pad k_pad"]:
    """Room for the energies of the largest piece, whole blocks of them."""
    which, rows = next(pieces(n, q, k))
    shape = (which.stop, triton.cdiv(rows.stop, BLOCK) * BLOCK, triton.cdiv(k, BLOCK) * BLOCK)
    return like.new_empty(shape, dtype=torch.float32)


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
    n, q, k, width = *a.shape[:2], *v.shape[1:]
    out, lse = v.new_empty((n, q, width)), a.new_empty((n, q), dtype=torch.float32)
    left, right, weight, spans = side(a, True), side(b, True), padded(w), spans_of(start, stop)
    room = workspace(n, q, k, a)
    wide = min(128, max(16, triton.next_power_of_2(width)))
    tall, stages = (BLOCK // 2, 2) if v.dtype == torch.float32 else (BLOCK, 3)
    for m, i in pieces(n, q, k):
        e, blocks = room[: m.stop - m.start], slice(i.start // BLOCK, triton.cdiv(i.stop, BLOCK))
        first, last, span = (
            (None, None, None) if start is None else (start[m, i], stop[m, i], spans[m, blocks])  # type: ignore[index]
        )
        energies(left.part(m, i), right.part(m, slice(0, k)), weight, span, scale, e)
        rows = i.stop - i.start
        launch.start(
            _average, (triton.cdiv(width, wide), triton.cdiv(rows, tall), e.shape[0]),
            e, *e.stride()[:2], v[m], *v.stride(), first, *strides(first), last, *strides(last), span,
            0 if span is None else span.stride(0), seed, out[m, i], *out.stride()[:2], lse[m, i], lse.stride(0),
            rows, k, width, m.start, i.start, dropout,
            start is not None, dropout > 0, BLOCK, tall, wide, num_warps=4, num_stages=stages,
        )  # fmt: skip
    return out, lse
