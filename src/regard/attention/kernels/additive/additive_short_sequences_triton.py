"""Additive attention on the GPU for short sequences, one kernel for each direction: Python is what takes the time here.

Forward: one program per ROWS queries, which walks along the keys. As for a few queries, KEYS keys are worked on side by
side, and each of these places keeps a running softmax of its own.

Backward: one program per KEYS keys, which walks along the queries and keeps b, v and the sums of db, dv and dw in
registers. Its part of da is written for each query, and the parts are added up afterwards: no atomics, and two runs
give the same bits.

    r = 1 / (e^{2(a + b)} + 1)    tanh = 1 − 2r    da_id = 4 w_d Σ_j ds_ij r (1 − r)    dw_d = Σ_ij ds_ij (1 − 2r)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from .. import ceil
from ..fast_triton_launch import Launch, leading_strides
from ..matrix_pieces_triton import LN2, LOG2E, WORKSPACE, kept
from .additive_energies_triton import LIMIT, TWICE_LOG2E, add_parts, keys_at_once, reciprocal
from .additive_launches import AdditiveLaunches, BackwardLaunches, ForwardLaunches

if TYPE_CHECKING:
    from torch import Tensor

    from .. import KernelArguments

LONGEST = 512
"""Queries that a program of the backward walks along; beyond, the GPU takes longer than Python."""

WIDEST = 512
"""The widest row of b or v that a program can hold beside what it sums."""

ROWS, WARPS = 4, 4
FORWARD_TILE, BACKWARD_TILE = 1024, 2048
"""Numbers of b (or v) that a program holds at once."""

LOG2E_ = tl.constexpr(LOG2E)


@triton.jit
def _pair(x, y):
    """1 / (e^{2s} + 1) of the sums s = x + y of two neighbours, given as pairs, with one reciprocal for both.

    Past LIMIT, where the product would overflow, tanh has long been 1; a NaN stays one.
    """
    s1 = tl.minimum(x[0] + y[0], LIMIT, propagate_nan=tl.PropagateNan.ALL)
    s2 = tl.minimum(x[1] + y[1], LIMIT, propagate_nan=tl.PropagateNan.ALL)
    x1, x2 = tl.exp2(s1 * TWICE_LOG2E) + 1, tl.exp2(s2 * TWICE_LOG2E) + 1
    both = reciprocal(x1 * x2)
    return x2 * both, x1 * both


@triton.jit
def _forward(
    a, b, w, v, start, stop, seed, out, lse,
    a_n, a_t, b_n, b_t, v_n, v_j, start_n, start_i, stop_n, stop_i, q, k, d, width, scale, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)  # first: the other numbers of a grid stop at 65,535
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    even, wide = 2 * tl.arange(0, DEEP // 2), tl.arange(0, WIDE)
    odd = even + 1
    low = tl.zeros([ROWS], tl.int32)
    high = tl.where(i < q, k, 0)
    if INTERVAL:
        low = tl.load(start + n * start_n + i * start_i, i < q, 2**31 - 1).to(tl.int32)
        high = tl.minimum(tl.load(stop + n * stop_n + i * stop_i, i < q, 0).to(tl.int32), k)
    rows = a + n * a_n + i.to(tl.int64)[:, None] * a_t
    x1 = tl.load(rows + even[None, :], (i < q)[:, None] & (even < d)[None, :], 0.0).to(tl.float32)[:, None, :]
    x2 = tl.load(rows + odd[None, :], (i < q)[:, None] & (odd < d)[None, :], 0.0).to(tl.float32)[:, None, :]
    w1 = tl.load(w + even, even < d, 0.0).to(tl.float32)[None, None, :]
    w2 = tl.load(w + odd, odd < d, 0.0).to(tl.float32)[None, None, :]
    top = tl.full([ROWS, KEYS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS, KEYS], tl.float32)
    sums = tl.zeros([ROWS, KEYS, WIDE], tl.float32)
    last = tl.max(high)
    for block in tl.range(tl.minimum(tl.min(low), last), last, KEYS, num_stages=2):
        j = block + tl.arange(0, KEYS)
        keys = b + n * b_n + j.to(tl.int64)[:, None] * b_t
        y1 = tl.load(keys + even[None, :], (j < last)[:, None] & (even < d)[None, :], 0.0).to(tl.float32)[None, :, :]
        y2 = tl.load(keys + odd[None, :], (j < last)[:, None] & (odd < d)[None, :], 0.0).to(tl.float32)[None, :, :]
        values = v + n * v_n + j.to(tl.int64)[:, None] * v_j + wide[None, :]
        values = tl.load(values, (j < last)[:, None] & (wide < width)[None, :], 0.0).to(tl.float32)[None, :, :]
        r1, r2 = _pair((x1, x2), (y1, y2))  # [ROWS, KEYS, DEEP / 2]
        here = tl.sum((w1 + w2) - 2 * (w1 * r1 + w2 * r2), 2) * (scale * LOG2E_)  # [ROWS, KEYS]
        seen = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        here = tl.where(seen, here, float("-inf"))
        above = tl.maximum(top, here)
        anchor = tl.where(above == float("-inf"), 0.0, above)  # −∞ − 0 rather than −∞ + ∞
        p = tl.exp2(here - anchor)
        shrunk = tl.exp2(top - anchor)
        total = total * shrunk + p
        if DROPOUT:
            p *= kept(tl.load(seed), n, i[:, None], j[None, :], dropout)
        part = p[:, :, None] * values
        if INTERVAL:
            part = tl.where(seen[:, :, None], part, 0.0)  # a hidden value may be NaN
        sums = sums * shrunk[:, :, None] + part
        top = above
    most = tl.max(top, 1)
    factor = tl.exp2(top - tl.where(most == float("-inf"), 0.0, most)[:, None])  # what each place's average counts for
    whole = tl.sum(total * factor, 1)
    empty = low >= high
    result = tl.sum(sums * factor[:, :, None], 1) / tl.where(empty, 1.0, whole)[:, None]
    at = n * q + i
    place = out + at[:, None] * width + wide[None, :]
    tl.store(place, result.to(out.dtype.element_ty), (i < q)[:, None] & (wide < width)[None, :])
    tl.store(lse + at, tl.where(empty, float("inf"), (most + tl.log2(whole)) * LN2), i < q)


@triton.jit
def _halves(x, at, exists, end):
    """Every second number of some rows, and their neighbours: x points at the rows, 0 where a number does not exist."""
    first = tl.load(x + at, exists & (at < end), 0.0).to(tl.float32)
    return first, tl.load(x + at + 1, exists & (at + 1 < end), 0.0).to(tl.float32)


@triton.jit
def _store_halves(x, at, exists, end, first, second):
    tl.store(x + at, first.to(x.dtype.element_ty), exists & (at < end))
    tl.store(x + at + 1, second.to(x.dtype.element_ty), exists & (at + 1 < end))


@triton.jit
def _add_pairs(x1, y1, x2, y2):
    return x1 + x2, y1 + y2


@triton.jit
def _add_triples(x1, y1, z1, x2, y2, z2):
    return x1 + x2, y1 + y2, z1 + z2


@triton.jit
def _backward(
    grad, grad_lse, a, b, w, v, out, lse, start, stop, seed, da, db, dw, dv,
    grad_n, grad_i, a_n, a_t, b_n, b_t, v_n, v_j, start_n, start_i, stop_n, stop_i, q, k, d, width, scale, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    n, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part = n * tl.num_programs(1) + block
    j = block * KEYS + tl.arange(0, KEYS)
    real, row = (j < k)[:, None], tl.full([1, 1], True, tl.int1)
    at = 2 * tl.arange(0, WIDE // 2)[None, :]
    y = _halves(b + n * b_n + j.to(tl.int64)[:, None] * b_t, at, real, d)  # each [KEYS, WIDE / 2]
    v1, v2 = _halves(v + n * v_n + j.to(tl.int64)[:, None] * v_j, at, real, width)
    w1, w2 = _halves(w, at, row, d)
    sums1, sums2 = tl.zeros([KEYS, WIDE // 2], tl.float32), tl.zeros([KEYS, WIDE // 2], tl.float32)
    slopes1, slopes2 = tl.zeros([KEYS, WIDE // 2], tl.float32), tl.zeros([KEYS, WIDE // 2], tl.float32)
    dv1, dv2 = tl.zeros([KEYS, WIDE // 2], tl.float32), tl.zeros([KEYS, WIDE // 2], tl.float32)
    slope_total = tl.zeros([KEYS], tl.float32)
    for i in tl.range(q, num_stages=3):
        x = _halves(a + n * a_n + i * a_t, at, row, d)
        g1, g2 = _halves(grad + n * grad_n + i * grad_i, at, row, width)
        z1, z2 = _halves(out + (n * q + i) * width, at, row, width)
        seen = j < k
        if INTERVAL:
            seen = seen & (j >= tl.load(start + n * start_n + i * start_i).to(tl.int32))
            seen = seen & (j < tl.load(stop + n * stop_n + i * stop_i).to(tl.int32))
        r1, r2 = _pair(x, y)
        energy = (w1 + w2) - 2 * (w1 * r1 + w2 * r2)
        # One reduction for all sums along a row: each waits for all warps. grad·v − grad·z is grad·(v − z).
        if DROPOUT:
            slope, delta = g1 * v1 + g2 * v2, g1 * z1 + g2 * z2 + tl.zeros_like(v1)
            e, slope, delta = tl.reduce((energy, slope, delta), 1, _add_triples)
            factor = kept(tl.load(seed), n, i, j, dropout)
            slope = slope * factor - delta
        else:
            e, slope = tl.reduce((energy, g1 * (v1 - z1) + g2 * (v2 - z2)), 1, _add_pairs)
        if grad_lse is not None:
            slope += tl.load(grad_lse + n * q + i).to(tl.float32)
        p = tl.where(seen, tl.exp2((e * scale - tl.load(lse + n * q + i)) * LOG2E_), 0.0)
        weight = p * factor if DROPOUT else p
        ds = tl.where(seen, p * slope * scale, 0.0)
        if INTERVAL:  # a hidden key may be NaN
            r1, r2 = tl.where(seen[:, None], r1, 0.0), tl.where(seen[:, None], r2, 0.0)
        steep1, steep2 = ds[:, None] * (r1 - r1 * r1), ds[:, None] * (r2 - r2 * r2)
        sums1 += steep1
        sums2 += steep2
        slopes1 += ds[:, None] * r1
        slopes2 += ds[:, None] * r2
        slope_total += ds
        dv1 += weight[:, None] * g1
        dv2 += weight[:, None] * g2
        to_a = da + (part * q + i) * d
        _store_halves(to_a, at, row, d, 4 * tl.sum(w1 * steep1, 0)[None, :], 4 * tl.sum(w2 * steep2, 0)[None, :])
    _store_halves(db + (n * k + j)[:, None] * d, at, real, d, 4 * w1 * sums1, 4 * w2 * sums2)
    _store_halves(dv + (n * k + j)[:, None] * width, at, real, width, dv1, dv2)
    total = tl.sum(slope_total)
    first, second = total - 2 * tl.sum(slopes1, 0), total - 2 * tl.sum(slopes2, 0)
    _store_halves(dw + part * d, at, row, d, first[None, :], second[None, :])


def applies(a: Tensor, v: Tensor) -> bool:
    """Whether the sequences are short, and the parts of da fit into the workspace."""
    (n, q, d), (k, width) = a.shape, v.shape[1:]
    if q > LONGEST or max(d, width) > WIDEST:
        return False
    return n * q * d * ceil(k, keys_at_once(d, width, BACKWARD_TILE)[0]) <= WORKSPACE


def _forward_launches(a: Tensor, b: Tensor, v: Tensor, options: KernelArguments) -> ForwardLaunches:
    start, stop, _, scale, dropout = options
    (n, q, d), (k, width) = a.shape, v.shape[1:]
    numbers = (*leading_strides(a, b, v, start, stop), q, k, d, width, scale, dropout)
    flags = (start is not None, dropout > 0, ROWS, *keys_at_once(d, width, FORWARD_TILE))
    step = Launch(_forward, (n, ceil(q, ROWS), 1), (*numbers, *flags), num_warps=WARPS)
    return ForwardLaunches(step, None, 1)


def _backward_launches(grad: Tensor, a: Tensor, b: Tensor, v: Tensor, options: KernelArguments) -> BackwardLaunches:
    start, stop, _, scale, dropout = options
    (n, q, d), (k, width) = a.shape, v.shape[1:]
    keys, deep, wide = keys_at_once(d, width, BACKWARD_TILE)
    blocks = ceil(k, keys)
    numbers = (*leading_strides(grad, a, b, v, start, stop), q, k, d, width, scale, dropout)
    flags = (start is not None, dropout > 0, keys, max(deep, wide))
    step = Launch(_backward, (n, blocks, 1), (*numbers, *flags), num_warps=WARPS)
    add_dw = Launch(add_parts, (ceil(d, 16), 1, 1), (n * blocks, d, 128, 16), num_warps=4)
    return BackwardLaunches(step, add_dw, blocks, in_float32=False)


launches = AdditiveLaunches(_forward_launches, _backward_launches)
