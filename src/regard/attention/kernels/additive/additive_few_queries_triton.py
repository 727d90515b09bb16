"""Additive attention on the GPU for a few queries, a decoder's step: bound by reading b and v, and by Python before it.

Forward: one program per row and share of the keys, which it reads once. KEYS keys are worked on side by side, and each
of these places keeps a maximum, a sum and an average of its own (the running softmax, KEYS times); they meet when all
keys are done. So no step waits for another warp.

Backward: the same walk, once more from the log-sum-exp. Each program writes its keys' db and dv, and one part of da and
dw, added up afterwards: no atomics, and two runs give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from .. import ceil
from ..fast_triton_launch import Launch, leading_strides
from ..matrix_pieces_triton import LN2, LOG2E, kept
from .additive_energies_triton import LIMIT, TWICE_LOG2E, add_parts, keys_at_once, reciprocal
from .additive_launches import AdditiveLaunches, BackwardLaunches, ForwardLaunches

if TYPE_CHECKING:
    from torch import Tensor

    from .. import KernelArguments

FEW = 8
"""Up to so many queries, blocks of 64 rows would be mostly padding."""

WIDEST = 1024
"""The widest row of b or v that a program can hold."""

PROGRAMS = 256
"""What fills the GPU; with fewer rows, each row's keys are split among several programs, at most SPLITS."""

SPLITS = 128

TILE, STAGES, WARPS = 2048, 5, 2
"""Numbers of b (or v) in one step, steps in flight, and warps: the fastest on an H200 of those tried."""

LOG2E_ = tl.constexpr(LOG2E)


@triton.jit
def _halves(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Every second number of each row, and the others: both are in the thread that has their neighbour."""
    return tl.split(tl.reshape(x, (ROWS, WIDTH // 2, 2)))


@triton.jit
def _shrunk(x, y, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """x₁, x₂ and 1/(x₁x₂) of every second sum s = x + y and its neighbour, where x = e^{2s} + 1 and tanh s = 1 − 2/x.

    Past LIMIT, where x₁x₂ would overflow, tanh has long been 1; a NaN stays one.
    """
    s = tl.minimum(x + y, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    x1, x2 = _halves(tl.exp2(s * TWICE_LOG2E) + 1, ROWS, WIDTH)
    return x1, x2, reciprocal(x1 * x2)


@triton.jit
def _forward(
    a, b, w, v, start, stop, seed, out, lse,
    a_n, a_t, b_n, b_t, v_n, v_j, start_n, start_i, stop_n, stop_i, rows, q, k, d, width, share, scale, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr,
    KEYS: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = row // q
    i = (row % q).to(tl.int32)
    low = split * share
    high = tl.minimum(k, low + share)
    if INTERVAL:
        low = tl.maximum(low, tl.load(start + n * start_n + i * start_i).to(tl.int32))
        high = tl.minimum(high, tl.load(stop + n * stop_n + i * stop_i).to(tl.int32))
    deep, wide = tl.arange(0, DEEP), tl.arange(0, WIDE)
    x = tl.load(a + n * a_n + i * a_t + deep, deep < d, 0.0).to(tl.float32)[None, :]
    weight = tl.load(w + deep, deep < d, 0.0).to(tl.float32)
    w1, w2 = _halves(weight[None, :], 1, DEEP)
    top = tl.full([KEYS], float("-inf"), tl.float32)
    total = tl.zeros([KEYS], tl.float32)
    sums = tl.zeros([KEYS, WIDE], tl.float32)
    # The next keys are on their way while these are worked on.
    for block in tl.range(low, high, KEYS, num_stages=STAGES):
        j = block + tl.arange(0, KEYS)
        y = b + n * b_n + j.to(tl.int64)[:, None] * b_t + deep[None, :]
        y = tl.load(y, (j < high)[:, None] & (deep < d)[None, :], 0.0).to(tl.float32)  # [KEYS, DEEP]
        values = v + n * v_n + j.to(tl.int64)[:, None] * v_j + wide[None, :]
        values = tl.load(values, (j < high)[:, None] & (wide < width)[None, :], 0.0).to(tl.float32)  # [KEYS, WIDE]
        x1, x2, both = _shrunk(x, y, KEYS, DEEP)
        here = tl.sum((w1 + w2) - 2 * (w1 * x2 + w2 * x1) * both, 1) * (scale * LOG2E_)
        here = tl.where(j < high, here, float("-inf"))
        above = tl.maximum(top, here)
        # A place that has seen nothing yet: −∞ − 0 rather than −∞ + ∞.
        anchor = tl.where(above == float("-inf"), 0.0, above)
        p = tl.exp2(here - anchor)
        shrunk = tl.exp2(top - anchor)
        total = total * shrunk + p
        if DROPOUT:
            p *= kept(tl.load(seed), n, i, j, dropout)
        sums = sums * shrunk[:, None] + p[:, None] * values
        top = above
    most = tl.max(top)
    factor = tl.exp2(top - tl.where(most == float("-inf"), 0.0, most))  # what each place's average counts for
    all_of_it = tl.sum(total * factor)
    empty = low >= high
    result = tl.sum(sums * factor[:, None], 0) / tl.where(empty, 1.0, all_of_it)
    at = split * rows + row
    tl.store(out + at * width + wide, result.to(out.dtype.element_ty), wide < width)
    # A share without keys counts nothing when the shares are joined.
    tl.store(lse + at, tl.where(empty, float("inf") if WHOLE else float("-inf"), (most + tl.log2(all_of_it)) * LN2))


@triton.jit
def _join(parts, states, out, lse, rows, splits, width, SPLITS: tl.constexpr, WIDE: tl.constexpr):
    """Shares of the keys into one: out = Σ_s e^{lse_s − lse} out_s. Where a row saw nothing, lse_s = −∞."""
    row = tl.program_id(0).to(tl.int64)
    s, wide = tl.arange(0, SPLITS), tl.arange(0, WIDE)
    state = tl.load(states + s * rows + row, s < splits, float("-inf"))
    top = tl.max(state)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(state - top))
    empty = total == 0
    sums = tl.zeros([WIDE], tl.float32)
    for split in range(splits):
        at = split * rows + row
        part = tl.load(parts + at * width + wide, wide < width, 0.0)
        sums += tl.exp(tl.load(states + at) - top) * part
    result = sums / tl.where(empty, 1.0, total)
    tl.store(out + row * width + wide, result.to(out.dtype.element_ty), wide < width)
    tl.store(lse + row, tl.where(empty, float("inf"), top + tl.log(total)))


@triton.jit
def _backward(
    grad, grad_lse, a, b, w, v, out, lse, start, stop, seed, da, db, dw, dv,
    grad_n, grad_i, a_n, a_t, b_n, b_t, v_n, v_j, start_n, start_i, stop_n, stop_i,
    q, k, d, width, share, scale, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, ONE: tl.constexpr,
    KEYS: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """db and dv of a share of the keys, summed over the rows; da and dw as this share's part of their sums."""
    n, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part = n * tl.num_programs(1) + split
    deep, wide = tl.arange(0, DEEP), tl.arange(0, WIDE)
    weight = tl.load(w + deep, deep < d, 0.0).to(tl.float32)[None, :]
    slopes = tl.zeros([KEYS, DEEP], tl.float32)
    for i in range(q):
        x = tl.load(a + n * a_n + i * a_t + deep, deep < d, 0.0).to(tl.float32)[None, :]
        g = tl.load(grad + n * grad_n + i * grad_i + wide, wide < width, 0.0).to(tl.float32)[None, :]
        z = tl.load(out + (n * q + i) * width + wide, wide < width, 0.0).to(tl.float32)[None, :]
        delta = tl.sum(g * z)
        if grad_lse is not None:
            delta -= tl.load(grad_lse + n * q + i).to(tl.float32)
        state = tl.load(lse + n * q + i)
        low = 0
        high = k
        if INTERVAL:
            low = tl.load(start + n * start_n + i * start_i).to(tl.int32)
            high = tl.load(stop + n * stop_n + i * stop_i).to(tl.int32)
        sums = tl.zeros([KEYS, DEEP], tl.float32)
        for block in tl.range(split * share, tl.minimum(k, (split + 1) * share), KEYS, num_stages=STAGES):
            j = block + tl.arange(0, KEYS)
            real = j < tl.minimum(k, (split + 1) * share)
            seen = real & (j >= low) & (j < high)
            y = b + n * b_n + j.to(tl.int64)[:, None] * b_t + deep[None, :]
            y = tl.load(y, seen[:, None] & (deep < d)[None, :], 0.0).to(tl.float32)  # [KEYS, DEEP]
            values = v + n * v_n + j.to(tl.int64)[:, None] * v_j + wide[None, :]
            values = tl.load(values, seen[:, None] & (wide < width)[None, :], 0.0).to(tl.float32)  # [KEYS, WIDE]
            x1, x2, both = _shrunk(x, y, KEYS, DEEP)
            r = tl.reshape(tl.join(x2 * both, x1 * both), (KEYS, DEEP))
            e = tl.sum(weight * (1 - 2 * r), 1) * scale
            p = tl.where(seen, tl.exp2((e - state) * LOG2E_), 0.0)
            slope = tl.sum(g * values, 1)
            given = p
            if DROPOUT:
                factor = kept(tl.load(seed), n, i, j, dropout)
                given = p * factor
                slope = slope * factor
            ds = tl.where(seen, p * (slope - delta) * scale, 0.0)[:, None]
            steep = ds * weight * 4 * (r - r * r)  # [KEYS, DEEP]
            sums += steep
            slopes += ds * (1 - 2 * r)
            shown = given[:, None] * g  # [KEYS, WIDE]
            inside, across = real[:, None] & (deep < d)[None, :], real[:, None] & (wide < width)[None, :]
            to_b = db + (n * k + j)[:, None] * d + deep[None, :]
            to_v = dv + (n * k + j)[:, None] * width + wide[None, :]
            if not ONE:
                steep += tl.load(to_b, inside & (i > 0), 0.0)
                shown += tl.load(to_v, across & (i > 0), 0.0)
            tl.store(to_b, steep.to(db.dtype.element_ty), inside)
            tl.store(to_v, shown.to(dv.dtype.element_ty), across)
        tl.store(da + (part * q + i) * d + deep, tl.sum(sums, 0).to(da.dtype.element_ty), deep < d)
        if not ONE:
            tl.debug_barrier()  # what one thread has stored another may load for the next row
    tl.store(dw + part * d + deep, tl.sum(slopes, 0), deep < d)


def applies(a: Tensor, v: Tensor) -> bool:
    return a.shape[1] <= FEW and a.shape[2] <= WIDEST and v.shape[2] <= WIDEST


def _forward_launches(a: Tensor, b: Tensor, v: Tensor, options: KernelArguments) -> ForwardLaunches:
    start, stop, _, scale, dropout = options
    (n, q, d), (k, width) = a.shape, v.shape[1:]
    rows, (keys, deep, wide) = n * q, keys_at_once(d, width, TILE)
    splits = max(1, min(PROGRAMS // rows, SPLITS, ceil(k, 4 * keys)))
    numbers = (*leading_strides(a, b, v, start, stop), rows, q, k, d, width, ceil(k, splits), scale, dropout)
    flags = (start is not None, dropout > 0, splits == 1, keys, deep, wide, STAGES)
    step = Launch(_forward, (rows, splits, 1), (*numbers, *flags), num_warps=WARPS)
    if splits == 1:
        return ForwardLaunches(step, None, 1)
    sizes = (rows, splits, width, 1 << (splits - 1).bit_length(), wide)
    return ForwardLaunches(step, Launch(_join, (rows, 1, 1), sizes, num_warps=4), splits)


def _backward_launches(grad: Tensor, a: Tensor, b: Tensor, v: Tensor, options: KernelArguments) -> BackwardLaunches:
    start, stop, _, scale, dropout = options
    (n, q, d), (k, width) = a.shape, v.shape[1:]
    keys, deep, wide = keys_at_once(d, width, TILE)
    splits = max(1, min(PROGRAMS // n, SPLITS, ceil(k, keys)))
    numbers = (*leading_strides(grad, a, b, v, start, stop), q, k, d, width, ceil(k, splits), scale, dropout)
    flags = (start is not None, dropout > 0, q == 1, keys, deep, wide, STAGES)
    step = Launch(_backward, (n, splits, 1), (*numbers, *flags), num_warps=WARPS)
    add_dw = Launch(add_parts, (ceil(d, 16), 1, 1), (n * splits, d, 128, 16), num_warps=4)
    return BackwardLaunches(step, add_dw, splits, in_float32=q > 1)


launches = AdditiveLaunches(_forward_launches, _backward_launches)
