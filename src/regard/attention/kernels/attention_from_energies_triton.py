"""Attention from energies on the GPU, forward and backward, a bounded piece of the matrix at a time.

A kernel of the energy's own writes the energies of a piece and does nothing else, so that it has all registers for it;
here a second one takes weights and values from them, in one pass with a running maximum, and in the backward a third
turns them into weights and slopes.

    softmax         w_ij = e^{E_ij − lse_i}     δ_i = grad_i·z_i − dlse_i
    proportional    w_ij = E_ij / S_i           δ_i = grad_i·z_i − S_i dS_i
    both            z_i = Σ_j w_ij v_j          ds_ij = w_ij (grad_i·v_j − δ_i)

ds is the slope of softmax's energies, and of the logarithms of proportional's. grad_i·z_i = Σ_j w_ij grad_i·v_j with
dropout and without it; the row state's own gradient enters with w_ij too. Energies without bound are the reason why the
backward can take w and δ from the energies anew (`_again`): log-sum-exp and output are rounded.
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
    """(matrices, rows, their spans, out): write these energies, E · log₂e for softmax, into out [n, q_pad, k_pad]."""

MOST = tl.constexpr(2.0**60)
"""The largest inverse distance: that of keys which count as equal to their query (`forms.NEAR`)."""


@triton.jit
def _anchored(here, top, PROPORTIONAL: tl.constexpr):
    """What energies weigh beside the largest one seen so far, which it is, and by what earlier weights shrink."""
    above = tl.maximum(top, tl.max(here, 1))
    # A row that has seen nothing yet: 0 / 1 rather than 0 / 0, −∞ − 0 rather than −∞ + ∞.
    if PROPORTIONAL:
        anchor = tl.where(above == 0, 1.0, above)
        p, shrunk = here / anchor[:, None], top / anchor
    else:
        anchor = tl.where(above == float("-inf"), 0.0, above)
        p, shrunk = tl.exp2(here - anchor[:, None]), tl.exp2(top - anchor)
    return p, above, anchor, shrunk


@triton.jit
def _average(
    e, e_n, e_i, v, v_n, v_j, v_d, start, start_n, start_i, stop, stop_n, stop_i, spans, spans_n, seed,
    out, out_n, out_i, state, state_n, q, k, width, n0, i0, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, PROPORTIONAL: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
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
    absent: tl.constexpr = 0.0 if PROPORTIONAL else float("-inf")  # the energy of a key that is not seen
    top = tl.full([ROWS], absent, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDE], tl.float32)
    for block in range(low, high, BLOCK):
        j = block + tl.arange(0, BLOCK)
        here = tl.load(e + n * e_n + i[:, None] * e_i + j[None, :])  # [ROWS, BLOCK]
        seen = (j < k)[None, :]
        if INTERVAL:
            seen = (j[None, :] >= first) & (j[None, :] < tl.minimum(last, k))
        here = tl.where(seen, here, absent)
        p, top, _, shrunk = _anchored(here, top, PROPORTIONAL)
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
    row_state = top * total if PROPORTIONAL else tl.where(empty, float("inf"), (top + tl.log2(total)) * LN2)
    tl.store(state + n * state_n + i, row_state, (i < q) & (part == 0))


@triton.jit
def _again(
    e, dp, e_n, e_i, near, top, mass, drift, row_n, start, start_n, start_i, stop, stop_n, stop_i, spans, spans_n, seed,
    q, k, n0, i0, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, PROPORTIONAL: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """top_i = max_j E_ij, mass_i = Σ_j of what weighs beside it, drift_i += Σ_j w_ij (dp_ij − near_i).

    near_i = grad_i·z_i is nearly δ_i, and δ = near + drift. A key with nearly all the weight has dp ≈ δ, and perhaps a
    steep energy: in two parts δ does not lose the digits that are left of their difference.
    """
    row_block, n = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = row_block * ROWS + tl.arange(0, ROWS)
    low = 0
    high = k
    if INTERVAL:
        first = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 0)[:, None]
        last = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)[:, None]
        span = spans + n * spans_n + 2 * (row_block * ROWS // BLOCK)
        low = tl.load(span) // BLOCK * BLOCK
        high = tl.minimum(tl.load(span + 1), k)
    absent: tl.constexpr = 0.0 if PROPORTIONAL else float("-inf")
    about = tl.load(near + n * row_n + i, i < q, 0.0)[:, None]
    most = tl.full([ROWS], absent, tl.float32)
    anchor = tl.full([ROWS], 1.0, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    apart = tl.zeros([ROWS], tl.float32)
    for block in range(low, high, BLOCK):
        j = block + tl.arange(0, BLOCK)
        seen = (i < q)[:, None] & (j < k)[None, :]
        if INTERVAL:
            seen = seen & (j[None, :] >= first) & (j[None, :] < last)
        at = n * e_n + i[:, None] * e_i + j[None, :]
        slope = tl.load(dp + at, seen, 0.0)  # [ROWS, BLOCK]
        if DROPOUT:
            slope *= kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        w, most, anchor, shrunk = _anchored(tl.load(e + at, seen, absent), most, PROPORTIONAL)
        total = total * shrunk + tl.sum(w, 1)
        apart = apart * shrunk + tl.sum(w * (slope - about), 1)
    total = tl.where(total == 0, 1.0, total)
    at = n * row_n + i
    tl.store(top + at, anchor, i < q)
    tl.store(mass + at, total, i < q)
    tl.store(drift + at, tl.load(drift + at, i < q, 0.0) + apart / total, i < q)


@triton.jit
def _slopes(
    e, dp, e_n, e_i, near, top, mass, drift, row_n, start, start_n, start_i, stop, stop_n, stop_i, seed,
    q, k, n0, i0, scale, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, MASS: tl.constexpr, DRIFT: tl.constexpr, INVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """In place: energies become w_ij with dropout, dp_ij becomes ds_ij; both 0 where row i does not see key j.

    INVERSE is proportional over inverse distances, E = 1/d, and −1/d², the slope of log E by d²/2, comes to ds_ij at
    once.
    """
    n = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = (i < q)[:, None] & (j < k)[None, :]
    if INTERVAL:
        first = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 0)[:, None]
        last = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)[:, None]
        seen = seen & (j[None, :] >= first) & (j[None, :] < last)
    row = n * row_n + i
    anchor = tl.load(top + row, i < q, 1.0)[:, None]
    at = n * e_n + i[:, None] * e_i + j[None, :]
    energy = tl.load(e + at, seen, 0.0)  # [BLOCK, BLOCK]
    p = energy / anchor if INVERSE else tl.exp2(energy - anchor)
    if MASS:
        p /= tl.load(mass + row, i < q, 1.0)[:, None]
    p = tl.where(seen, p, 0.0)
    slope = tl.load(dp + at, seen, 0.0)
    weight = p
    if DROPOUT:
        factor = kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        weight = p * factor
        slope = slope * factor
    slope -= tl.load(near + row, i < q, 0.0)[:, None]
    if DRIFT:
        slope -= tl.load(drift + row, i < q, 0.0)[:, None]
    slope = p * slope * scale
    if INVERSE:
        slope = tl.where(energy == MOST, 0.0, slope * energy * energy)  # what counts as equal does not move
    tl.store(e + at, weight)
    tl.store(dp + at, tl.where(seen, slope, 0.0))


def forward(
    energies: Energies,
    q: int,
    v: Float[Tensor, "n k d_v"],
    options: KernelArguments,
    proportional: bool = False,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output and row state: the log-sum-exp, +∞ for a row that sees no key; for proportional the sum."""
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
            start is not None, dropout > 0, proportional, BLOCK, tall, wide, num_warps=4, num_stages=stages,
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
    again: bool = False,
    inverse: bool = False,
) -> Float[Tensor, "n k d_v"]:
    """The gradient of v; `contract` is given scale · ds of each piece, to make of it those of queries and keys.

    Weights come from the row state, or `again` from the energies alone.
    """
    start, stop, seed, scale, dropout = options
    n, q, k = *state.shape, v.shape[1]
    spans, grad, v = spans_of(start, stop), grad.float(), v.float()
    dv = torch.zeros_like(v, memory_format=torch.contiguous_format)
    near = (grad * out.float()).sum(-1)
    top, mass = (torch.empty_like(near), torch.empty_like(near)) if again else (state.contiguous() * LOG2E, None)
    drift = torch.zeros_like(near) if again else None
    if grad_state is not None:
        drift = (-grad_state * state if inverse else -grad_state).contiguous()
    room, slopes = workspace(n, q, k, v), workspace(n, q, k, v)
    for m, i in pieces(n, q, k):
        e, ds, rows = room[: m.stop - m.start], slopes[: m.stop - m.start], i.stop - i.start
        first, last, span = piece_bounds(start, stop, spans, m, i)
        energies(m, i, span, e)
        torch.bmm(grad[m, i], v[m].mT, out=ds[:, :rows, :k])
        of_rows = *(None if x is None else x[m, i] for x in (near, top, mass, drift)), near.stride(0)
        bounds = first, *strides(first), last, *strides(last)
        if again:
            fast_triton_launch.start(
                _again, (1, ceil(rows, BLOCK // 4), e.shape[0]), e, ds, *e.stride()[:2], *of_rows, *bounds,
                span, 0 if span is None else span.stride(0), seed, rows, k, m.start, i.start, dropout,
                start is not None, dropout > 0, inverse, BLOCK, BLOCK // 4, num_warps=4,
            )  # fmt: skip
        fast_triton_launch.start(
            _slopes, (ceil(k, BLOCK), ceil(rows, BLOCK), e.shape[0]), e, ds, *e.stride()[:2], *of_rows,
            *bounds, seed, rows, k, m.start, i.start, scale, dropout,
            start is not None, dropout > 0, again, drift is not None, inverse, BLOCK, num_warps=4,
        )  # fmt: skip
        dv[m].baddbmm_(e[:, :rows, :k].mT, grad[m, i])
        contract(m, i, span, ds)
    return dv
