"""Additive attention on the GPU, backward: everything is recomputed from the log-sum-exp, nothing is kept but it.

    da_id = Σ_j ds_ij w_d (1 − t²)     db_jd = Σ_i ds_ij w_d (1 − t²)     dw_d = Σ_ij ds_ij t     t = tanh(a_id + b_jd)

Energies and slopes ds exist one bounded piece at a time (`attention_from_energies_triton.py`). Then `_contract`
runs twice: for da a thread keeps its rows and entries d and walks along the keys, for db it keeps keys and walks along
the rows. So every sum has one owner and one order: no atomics, and two runs give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from .. import attention_from_energies_triton, ceil, fast_triton_launch
from ..matrix_pieces_triton import BLOCK, meets
from .additive_energies_triton import LIMIT, energies, padded, reciprocal, shrink, side

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from .. import KernelArguments
    from ..matrix_pieces_triton import Spans
    from .additive_energies_triton import Side


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
    options: KernelArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w and v, each in its tensor's dtype."""
    da, db, dw = (torch.zeros_like(x, dtype=torch.float32, memory_format=torch.contiguous_format) for x in (a, b, w))
    across, along = (side(a, True), side(b, True)), (side(a, False), side(b, False))
    weight, keys = padded(w), slice(0, b.shape[1])

    def piece(m: slice, i: slice, spans: Spans | None, e: Tensor) -> None:
        energies(across[0].part(m, i), across[1].part(m, keys), weight, spans, options.scale, e)

    def contract(m: slice, i: slice, spans: Spans | None, ds: Tensor) -> None:
        left, right = along[0].part(m, i), along[1].part(m, keys)
        dw.add_(_contracted(left, right, weight, ds, spans, da[m, i], keys=False))
        _contracted(right, left, weight, ds, spans, db[m], keys=True)

    dv = attention_from_energies_triton.backward(piece, contract, grad, grad_lse, v, out, lse, options)
    return tuple(g.to(x.dtype) for g, x in zip((da, db, dw, dv), (a, b, w, v), strict=True))  # type: ignore[return-value]


def _contracted(
    own: Side, other: Side, w: Tensor, ds: Tensor, spans: Spans | None, out: Tensor, keys: bool
) -> Float[Tensor, " d"]:
    """Add this piece's part of da (or, for keys, db) to `out`, and return its part of dw (zeros for keys)."""
    n, count, d = own.rows.shape
    rows, registers = (BLOCK // 2, 128) if keys else (BLOCK, 255)  # as measured on an H200
    grid = (ceil(d, 64), ceil(count, rows), n)
    dw = out.new_empty((0 if keys else n, grid[1], d))
    ds_own, ds_other = (ds.stride(2), ds.stride(1)) if keys else (ds.stride(1), ds.stride(2))
    fast_triton_launch.start(
        _contract, grid,
        own.rows, *own.rows.stride(), other.rows, *other.rows.stride(), own.exponentials,
        *own.exponentials.stride()[:2], other.exponentials, *other.exponentials.stride()[:2], w,
        own.bound, own.bound.stride(0), other.bound, other.bound.stride(0),
        spans, 0 if spans is None else spans.stride(0), ds, ds.stride(0), ds_own, ds_other,
        out, *out.stride()[:2], dw, dw.stride(0), count, other.rows.shape[1], d,
        spans is not None, keys, BLOCK, rows, num_warps=4, maxnreg=registers,
    )  # fmt: skip
    return dw.sum((0, 1))
