"""Attention from energies on the GPU, forward and backward, a bounded piece of the matrix at a time.

A kernel of the energy's own writes the energies of a piece and does nothing else, so that it has all registers for it;
here a second one takes weights and values from them, in one pass with a running maximum, and in the backward a third
turns them into weights and slopes.

    w_ij = e^{E_ij − lse_i}    z_i = Σ_j w_ij v_j    δ_i = grad_i·z_i − dlse_i    ds_ij = w_ij (grad_i·v_j − δ_i)

ds is the slope of the energies. grad_i·z_i = Σ_j w_ij grad_i·v_j with dropout and without it; the log-sum-exp's own
gradient enters with w_ij too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from . import ceil, fast_triton_launch
from .matrix_pieces_triton import BLOCK, COMPILED, LN2, LOG2E, kept, piece_bounds, pieces, spans_of, strides, workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from . import KernelArguments
    from .matrix_pieces_triton import Spans

    Energies = Callable[[slice, slice, Spans | None, Tensor], None]
    """(matrices, rows, their spans, out): write these energies, E · log₂e, into out [n, q_pad, k_pad]."""


@triton.jit
def _average(
    e, e_n, e_i, v, v_n, v_j, v_d, start, start_n, start_i, stop, stop_n, stop_i, spans, spans_n, seed,
    out, out_n, out_i, state, state_n, q, k, width, n0, i0, dropout,
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
        anchor = tl.where(above == float("-inf"), 0.0, above)  # nothing seen yet: −∞ − 0 rather than −∞ + ∞
        p, shrunk, top = tl.exp2(here - anchor[:, None]), tl.exp2(top - anchor), above
        total = total * shrunk + tl.sum(p, 1)
        if DROPOUT:
            p *= kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        values = v + n * v_n + j.to(tl.int64)[:, None] * v_j + at[None, :] * v_d
        values = tl.load(values, (j < high)[:, None] & (at < width)[None, :], 0.0)  # [BLOCK, WIDE]
        if not COMPILED:
            values = values.to(tl.float32)  # the interpreter multiplies bfloat16 as the integers it stores them in
        # Three tensor-core products carry float32's digits; a single one keeps 11 bits.
        sums = tl.dot(p.to(values.dtype), values, sums * shrunk[:, None], input_precision="tf32x3")
    empty = total == 0  # not so where there is a NaN
    out += n * out_n + i.to(tl.int64)[:, None] * out_i + at[None, :]
    result = sums / tl.where(empty, 1.0, total)[:, None]
    tl.store(out, result.to(out.dtype.element_ty), (i < q)[:, None] & (at < width)[None, :])
    row_state = tl.where(empty, float("inf"), (top + tl.log2(total)) * LN2)
    tl.store(state + n * state_n + i, row_state, (i < q) & (part == 0))


@triton.jit
def _slopes(
    e, dp, e_n, e_i, delta, state, row_n, start, start_n, start_i, stop, stop_n, stop_i, seed, q, k, n0, i0, scale,
    dropout, INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place: energies become w_ij with dropout, dp_ij becomes ds_ij; both 0 where row i does not see key j."""
    n = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = (i < q)[:, None] & (j < k)[None, :]
    if INTERVAL:
        first = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 0)[:, None]
        last = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)[:, None]
        seen = seen & (j[None, :] >= first) & (j[None, :] < last)
    row = n * row_n + i
    lse = tl.load(state + row, i < q, 1.0)[:, None]
    at = n * e_n + i[:, None] * e_i + j[None, :]
    energy = tl.load(e + at, seen, 0.0)  # [BLOCK, BLOCK]
    p = tl.where(seen, tl.exp2(energy - lse), 0.0)
    slope = tl.load(dp + at, seen, 0.0)
    weight = p
    if DROPOUT:
        factor = kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        weight = p * factor
        slope = slope * factor
    slope = p * (slope - tl.load(delta + row, i < q, 0.0)[:, None]) * scale
    tl.store(e + at, weight)
    tl.store(dp + at, tl.where(seen, slope, 0.0))


def forward(
    energies: Energies,
    q: int,
    v: Float[Tensor, "n k d_v"],
    options: KernelArguments,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output and row state: the log-sum-exp, +∞ for a row that sees no key."""
    start, stop, seed, _, dropout = options
    n, k, width = v.shape
    out, state = v.new_empty((n, q, width)), v.new_empty((n, q), dtype=torch.float32)
    spans, room = spans_of(start, stop), workspace(n, q, k, v)
    wide = min(128, max(16, 1 << (width - 1).bit_length()))
    tall, stages = (BLOCK // 2, 2) if v.dtype == torch.float32 else (BLOCK, 3)
    for m, i in pieces(n, q, k):
        e, rows = room[: m.stop - m.start], i.stop - i.start
        first, last, span = piece_bounds(start, stop, spans, m, i)
        energies(m, i, span, e)
        fast_triton_launch.start(
            _average, (ceil(width, wide), ceil(rows, tall), e.shape[0]),
            e, *e.stride()[:2], v[m], *v.stride(), first, *strides(first), last, *strides(last), span,
            0 if span is None else span.stride(0), seed, out[m, i], *out.stride()[:2], state[m, i], state.stride(0),
            rows, k, width, m.start, i.start, dropout,
            start is not None, dropout > 0, BLOCK, tall, wide, num_warps=4, num_stages=stages,
        )  # fmt: skip
    return out, state


def backward(
    energies: Energies,
    contract: Energies,
    grad: Float[Tensor, "n q d_v"],
    grad_state: Float[Tensor, "n q"] | None,
    v: Float[Tensor, "n k d_v"],
    out: Float[Tensor, "n q d_v"],
    state: Float[Tensor, "n q"],
    options: KernelArguments,
) -> Float[Tensor, "n k d_v"]:
    """The gradient of v; `contract` is given scale · ds of each piece, to make of it those of queries and keys."""
    start, stop, seed, scale, dropout = options
    n, q, k = *state.shape, v.shape[1]
    spans, grad, v = spans_of(start, stop), grad.float(), v.float()
    dv = torch.zeros_like(v, memory_format=torch.contiguous_format)
    delta = (grad * out.float()).sum(-1)
    if grad_state is not None:
        delta = delta - grad_state
    state = state.contiguous() * LOG2E
    room, slopes = workspace(n, q, k, v), workspace(n, q, k, v)
    for m, i in pieces(n, q, k):
        e, ds, rows = room[: m.stop - m.start], slopes[: m.stop - m.start], i.stop - i.start
        first, last, span = piece_bounds(start, stop, spans, m, i)
        energies(m, i, span, e)
        torch.bmm(grad[m, i], v[m].mT, out=ds[:, :rows, :k])
        fast_triton_launch.start(
            _slopes, (ceil(k, BLOCK), ceil(rows, BLOCK), e.shape[0]), e, ds, *e.stride()[:2],
            delta[m, i], state[m, i], delta.stride(0), first, *strides(first), last, *strides(last),
            seed, rows, k, m.start, i.start, scale, dropout, start is not None, dropout > 0, BLOCK, num_warps=4,
        )  # fmt: skip
        dv[m].baddbmm_(e[:, :rows, :k].mT, grad[m, i])
        contract(m, i, span, ds)
    return dv
