"""Additive attention on the GPU, backward: everything is recomputed from the log-sum-exp, nothing is kept but it.

    p_ij = e^{E_ij − lse_i}     dp_ij = grad_i·v_j     ds_ij = scale · p_ij (dp_ij − δ_i)    δ_i = grad_i·out_i − dlse_i
    da_id = Σ_j ds_ij w_d (1 − t²)     db_jd = Σ_i ds_ij w_d (1 − t²)     dw_d = Σ_ij ds_ij t     t = tanh(a_id + b_jd)

Σ_j p_ij dp_ij = grad_i·out_i, with or without dropout; the log-sum-exp's own gradient enters with p_ij too.
Energies and slopes ds exist one bounded piece at a time. Then `_contract` runs twice: for da a thread keeps its rows
and entries d and walks along the keys, for db it keeps keys and walks along the rows. So every sum has one owner and
one order: no atomics, and two runs give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from . import launch
from .additive_triton_energies import (
    BLOCK,
    LIMIT,
    LOG2E,
    energies,
    meets,
    padded,
    reciprocal,
    shrink,
    side,
    spans_of,
)
from .additive_triton_forward import kept, pieces, strides, workspace

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .additive_triton_energies import Side

LOG2E_ = tl.constexpr(LOG2E)


@triton.jit
def _slopes(
    e, dp, e_n, e_i, lse, lse_n, delta, delta_n, start, start_n, start_i, stop, stop_n, stop_i, seed,
    q, k, n0, i0, scale, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place: energies become p_ij with dropout, dp_ij becomes ds_ij; both 0 where row i does not see key j."""
    n = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = (i < q)[:, None] & (j < k)[None, :]
    if INTERVAL:
        first = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 0)[:, None]
        last = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)[:, None]
        seen = seen & (j[None, :] >= first) & (j[None, :] < last)
    state = tl.load(lse + n * lse_n + i, i < q, 0.0)[:, None]
    drift = tl.load(delta + n * delta_n + i, i < q, 0.0)[:, None]
    at = n * e_n + i[:, None] * e_i + j[None, :]
    p = tl.where(seen, tl.exp2(tl.load(e + at, seen, 0.0) - state * LOG2E_), 0.0)  # [BLOCK, BLOCK]
    slope = tl.load(dp + at, seen, 0.0)
    weight = p
    if DROPOUT:
        factor = kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        weight = p * factor
        slope = slope * factor
    tl.store(e + at, weight)
    tl.store(dp + at, tl.where(seen, p * (slope - drift) * scale, 0.0))


@triton.jit
def _walk(
    mine, other, other_t, inside, ds, ds_t, sums, slopes, total, t, count,
    EXPONENTIALS: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Along one block of the other side: sums += ds r (1 − r), slopes += ds r, total += ds."""
    for first in range(0, BLOCK, 4):
        for step in tl.static_range(0, 4, 2):
            at = t + first + step
            s1, s2 = tl.load(ds + at * ds_t), tl.load(ds + (at + 1) * ds_t)  # [rows]
            place = other + at.to(tl.int64) * other_t
            y1 = tl.load(place, inside & (at < count), 0.0).to(tl.float32)[:, None, :]
            y2 = tl.load(place + other_t, inside & (at + 1 < count), 0.0).to(tl.float32)[:, None, :]
            if EXPONENTIALS:
                x1, x2 = mine * y1 + 1, mine * y2 + 1  # [4, rows, 16]
                both = reciprocal(x1 * x2)
                r1, r2 = x2 * both, x1 * both
            else:
                r1, r2 = shrink(mine + y1), shrink(mine + y2)
            sums += s1[None, :, None] * (r1 - r1 * r1)
            sums += s2[None, :, None] * (r2 - r2 * r2)
            if TOTAL:
                slopes += s1[None, :, None] * r1 + s2[None, :, None] * r2
                total += s1 + s2
    return sums, slopes, total


@triton.jit
def _contract(
    x, x_n, x_t, x_d, y, y_n, y_t, y_d, u, u_n, u_t, v, v_n, v_t, w, bound_x, bound_x_n, bound_y, bound_y_n,
    spans, spans_n, ds, ds_n, ds_own, ds_other, out, out_n, out_t, dw, dw_n, count, others, d,
    SPANS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out_id += 4 w_d Σ_t ds_it r (1 − r) over the other side t, for rows i (KEYS: keys i); for rows, dw's part too."""
    part, own, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own_block = own * ROWS // BLOCK
    i = own * ROWS + tl.arange(0, ROWS)
    # d in four parts, as the keys in `_energies`, and for the same reason.
    at = part * 64 + tl.arange(0, 4)[:, None] * 16 + tl.arange(0, 16)[None, :]  # [4, 16]
    inside = at < d
    mask = (i < count)[None, :, None] & inside[:, None, :]
    mine = tl.load(u + n * u_n + i.to(tl.int64)[None, :, None] * u_t + at[:, None, :], mask, 0.0)  # [4, ROWS, 16]
    ds += n * ds_n + i * ds_own
    sums = tl.zeros([4, ROWS, 16], tl.float32)
    slopes = tl.zeros([4, ROWS, 16], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    largest = tl.load(bound_x + n * bound_x_n + own_block)
    for block in range(tl.cdiv(others, BLOCK)):
        meet = True
        if SPANS:
            row_block = block if KEYS else own_block
            key_block = own_block if KEYS else block
            meet = meets(spans, spans_n, n, row_block, key_block, BLOCK)
        if meet:
            if largest + tl.load(bound_y + n * bound_y_n + block) <= LIMIT:
                sums, slopes, total = _walk(
                    mine, v + n * v_n + at, v_t, inside, ds, ds_other, sums, slopes, total, block * BLOCK, others,
                    True, not KEYS, BLOCK,
                )  # fmt: skip
            else:
                raw = tl.load(x + n * x_n + i.to(tl.int64)[None, :, None] * x_t + at[:, None, :] * x_d, mask, 0.0)
                sums, slopes, total = _walk(
                    raw.to(tl.float32), y + n * y_n + at * y_d, y_t, inside, ds, ds_other, sums, slopes, total,
                    block * BLOCK, others, False, not KEYS, BLOCK,
                )  # fmt: skip
    weight = tl.load(w + at, inside, 0.0)[:, None, :]
    out += n * out_n + i.to(tl.int64)[None, :, None] * out_t + at[:, None, :]
    tl.store(out, tl.load(out, mask, 0.0) + 4 * weight * sums, mask)
    if not KEYS:
        t = tl.sum(total[None, :, None] - 2 * slopes, 1)  # [4, 16]
        tl.store(dw + n * dw_n + own * d + at, t, inside)


def backward(
    grad: Float[Tensor, "n q d_v"],
    grad_lse: Float[Tensor, "n q"] | None,
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    out: Float[Tensor, "n q d_v"],
    lse: Float[Tensor, "n q"],
    start: Int[Tensor, "n q"] | None,
    stop: Int[Tensor, "n q"] | None,
    scale: float,
    dropout: float,
    seed: Int[Tensor, ""] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w and v, each in its tensor's dtype."""
    n, q, k, kinds = *a.shape[:2], b.shape[1], [x.dtype for x in (a, b, w, v)]
    da, db, dw, dv = (
        torch.zeros_like(x, dtype=torch.float32, memory_format=torch.contiguous_format) for x in (a, b, w, v)
    )
    across, along, weight, spans = (
        (side(a, True), side(b, True)),
        (side(a, False), side(b, False)),
        padded(w),
        spans_of(start, stop),
    )
    grad, v = grad.float(), v.float()
    delta = (grad * out.float()).sum(-1)
    if grad_lse is not None:
        delta -= grad_lse
    room, slopes = workspace(n, q, k, a), workspace(n, q, k, a)
    keys = slice(0, k)
    for m, i in pieces(n, q, k):
        count, rows, blocks = m.stop - m.start, i.stop - i.start, slice(i.start // BLOCK, triton.cdiv(i.stop, BLOCK))
        e, ds = room[:count], slopes[:count]
        first, last, span = (
            (None, None, None) if start is None else (start[m, i], stop[m, i], spans[m, blocks])  # type: ignore[index]
        )
        energies(across[0].part(m, i), across[1].part(m, keys), weight, span, scale, e)
        torch.bmm(grad[m, i], v[m].mT, out=ds[:, :rows, :k])
        launch.start(
            _slopes, (triton.cdiv(k, BLOCK), triton.cdiv(rows, BLOCK), count),
            e, ds, *e.stride()[:2], lse[m, i], lse.stride(0), delta[m, i], delta.stride(0), first, *strides(first),
            last, *strides(last), seed, rows, k, m.start, i.start, scale, dropout,
            start is not None, dropout > 0, BLOCK, num_warps=4,
        )  # fmt: skip
        dv[m].baddbmm_(e[:, :rows, :k].mT, grad[m, i])
        left, right = along[0].part(m, i), along[1].part(m, keys)
        dw += _contracted(left, right, weight, ds, span, da[m, i], keys=False)
        _contracted(right, left, weight, ds, span, db[m], keys=True)
    return tuple(g.to(t) for g, t in zip((da, db, dw, dv), kinds, strict=True))  # type: ignore[return-value]


def _contracted(
    own: Side, other: Side, w: Tensor, ds: Tensor, spans: Tensor | None, out: Tensor, keys: bool
) -> Float[Tensor, " d"]:
    """Add this piece's part of da (or, for keys, db) to `out`, and return its part of dw (zeros for keys)."""
    n, count, d = own.rows.shape
    rows, registers = (BLOCK // 2, 128) if keys else (BLOCK, 255)  # as measured on an H200
    grid = (triton.cdiv(d, 64), triton.cdiv(count, rows), n)
    dw = out.new_empty((0 if keys else n, grid[1], d))
    ds_own, ds_other = (ds.stride(2), ds.stride(1)) if keys else (ds.stride(1), ds.stride(2))
    launch.start(
        _contract, grid,
        own.rows, *own.rows.stride(), other.rows, *other.rows.stride(), own.exponentials,
        *own.exponentials.stride()[:2], other.exponentials, *other.exponentials.stride()[:2], w,
        own.bound, own.bound.stride(0), other.bound, other.bound.stride(0),
        spans, 0 if spans is None else spans.stride(0), ds, ds.stride(0), ds_own, ds_other,
        out, *out.stride()[:2], dw, dw.stride(0), count, other.rows.shape[1], d,
        spans is not None, keys, BLOCK, rows, num_warps=4, maxnreg=registers,
    )  # fmt: skip
    return dw.sum((0, 1))
