"""Questions about single rows or single weights: the row state itself, keys at given distances, W v.

Here a program owns a block of queries and looks at the keys they see.
"""
# mypy: ignore-errors
# Triton compiles neither `in` nor every conditional expression:

import triton
import triton.language as tl

from .weight_functions_triton import ADDRESSES, LENGTHS, energies, matrix, weigh


@triton.jit
def block_of(
    q_tile, k, from_k, k_row, keys, i_place, j, low, high, scale, cap, slope, key0,
    CAP: tl.constexpr, ALIBI: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Energies of a block of queries and the keys j, −∞ where a query does not see a key: [BM, BN]."""
    k_tile = matrix(k, from_k, j, k_row, keys, D, BD, ALIGN)
    s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
    e = energies(s, i_place[:, None], key0 + j[None, :], scale, cap, slope, CAP, ALIBI)
    return tl.where((j[None, :] >= low[:, None]) & (j[None, :] < high[:, None]), e, float("-inf"))


@triton.jit
def rows_of(
    q, q_at, k_at, place, slopes, start, stop, queries, keys, q_row, bound_n,
    ALIBI: tl.constexpr, BOUNDED: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """What a program needs to know about its own rows."""
    n = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    real = i < queries
    q_tile = matrix(q, tl.load(q_at + n), i, q_row, queries, D, BD, ALIGN)
    slope = tl.load(slopes + n) if ALIBI else 0.0
    i_place = tl.load(place + i, mask=real, other=0) if ALIBI else i
    if BOUNDED:
        low = tl.load(start + n * bound_n + i, mask=real, other=0)
        high = tl.load(stop + n * bound_n + i, mask=real, other=0)
        since = tl.min(tl.where(high > low, low, keys), axis=0)
        until = tl.max(tl.where(high > low, high, 0), axis=0)
    else:
        low = tl.zeros((BM,), tl.int32)
        high = tl.where(real, keys, 0)
        since, until = keys * 0, keys
    return n, i, real, q_tile, slope, i_place, low, high, since, until, tl.load(k_at + n)


@triton.jit
def whole_blocks(low, high, since, until, BN: tl.constexpr):
    """The blocks of BN keys that all rows see: from, to. They begin at `since`, as all blocks do."""
    begin, end = tl.max(tl.where(high > low, low, 0), axis=0), tl.min(tl.where(high > low, high, 0x7FFFFFFF), axis=0)
    begin = since + tl.cdiv(tl.maximum(begin - since, 0), BN) * BN
    end = since + tl.maximum(tl.minimum(end, until) - since, 0) // BN * BN
    return begin, tl.maximum(begin, end)


@triton.jit
def add_to_state(e, most, total, c):
    """The largest energy of each row and the sum beside it, joined with a block of energies."""
    more = tl.maximum(most, tl.max(e, axis=1))
    safe = tl.where(more == float("-inf"), 0.0, more)  # no key seen so far: ∞ − ∞ would be NaN
    total = total * tl.exp2((most - safe) * c) + tl.sum(tl.exp2((e - safe[:, None]) * c), axis=1)
    return more, total


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def row_state(
    q, k, q_at, k_at, place, slopes, start, stop, state, queries, keys, q_row, k_row, bound_n, key0, scale, c, cap,
    CAP: tl.constexpr, ALIBI: tl.constexpr, BOUNDED: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """log₂ Σ_j 2^(c e_ij) → state [n, q], +∞ for an empty row."""
    n, i, real, q_tile, slope, i_place, low, high, since, until, from_k = rows_of(
        q, q_at, k_at, place, slopes, start, stop, queries, keys, q_row, bound_n, ALIBI, BOUNDED, D, BD, BM, ALIGN
    )
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    begin, end = whole_blocks(low, high, since, until, BN)
    for at in range(begin, end, BN):
        j = at + tl.arange(0, BN)
        s = tl.dot(q_tile, tl.trans(matrix(k, from_k, j, k_row, keys, D, BD, ALIGN)), input_precision=PRECISION)
        e = energies(s, i_place[:, None], key0 + j[None, :], scale, cap, slope, CAP, ALIBI)
        most, total = add_to_state(e, most, total, c)
    # Before and after these are blocks of which rows see a part.
    for step in range(0, until - since - (end - begin), BN):
        at = since + step + tl.where(since + step < begin, 0, end - begin)
        e = block_of(
            q_tile, k, from_k, k_row, keys, i_place, at + tl.arange(0, BN), low, high, scale, cap, slope, key0,
            CAP, ALIBI, PRECISION, D, BD, ALIGN,
        )  # fmt: skip
        most, total = add_to_state(e, most, total, c)
    empty = (most == float("-inf")) | (high <= low)
    tl.store(state + n * queries + i, tl.where(empty, float("inf"), most * c + tl.log2(total)), mask=real)


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def single_weights(
    q, k, q_at, k_at, state, place, slopes, start, stop, shifts, values, queries, keys,
    q_row, k_row, bound_n, key0, scale, c, cap, count,
    CAP: tl.constexpr, ALIBI: tl.constexpr, BOUNDED: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    BM: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """w_{i, i + shift} for `count` shifts by single dot products, 0 where there is no such key."""
    n = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    real = i < queries
    q_tile = matrix(q, tl.load(q_at + n), i, q_row, queries, D, BD, ALIGN).to(tl.float32)
    own_state = tl.load(state + n * queries + i, mask=real, other=0)
    slope = tl.load(slopes + n) if ALIBI else 0.0
    i_place = tl.load(place + i, mask=real, other=0)
    from_k = tl.load(k_at + n)
    low = tl.load(start + n * bound_n + i, mask=real, other=0) if BOUNDED else tl.zeros((BM,), tl.int32)
    high = tl.load(stop + n * bound_n + i, mask=real, other=0) if BOUNDED else low + keys
    row = n * queries + i.to(tl.int64)
    for at in range(count):
        j = i_place + tl.load(shifts + at) - key0
        seen = real & (j >= low) & (j < high) & (j >= 0) & (j < keys)
        s = tl.sum(
            q_tile * matrix(k, from_k, tl.where(seen, j, keys), k_row, keys, D, BD, ALIGN).to(tl.float32), axis=1
        )
        w = weigh(energies(s, i_place, key0 + j, scale, cap, slope, CAP, ALIBI), own_state, c)
        tl.store(values + row * count + at, tl.where(seen, w, 0.0), mask=real)


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def fidelity(
    q, k, v, z, q_at, k_at, v_at, z_at, state, place, slopes, start, stop, error, norm, queries, keys, q_row,
    k_row, v_row, z_row, bound_n, key0, scale, c, cap,
    CAP: tl.constexpr, ALIBI: tl.constexpr, BOUNDED: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Σ |W v − z|² and Σ |z|² over a block of rows: error and norm [n, row blocks]."""
    n, i, real, q_tile, slope, i_place, low, high, since, until, from_k = rows_of(
        q, q_at, k_at, place, slopes, start, stop, queries, keys, q_row, bound_n, ALIBI, BOUNDED, D, BD, BM, ALIGN
    )
    own_state = tl.load(state + n * queries + i, mask=real, other=float("inf"))
    from_v = tl.load(v_at + n)
    out = tl.zeros((BM, BDV), tl.float32)
    for at in range(since, until, BN):
        j = at + tl.arange(0, BN)
        e = block_of(
            q_tile, k, from_k, k_row, keys, i_place, j, low, high, scale, cap, slope, key0,
            CAP, ALIBI, PRECISION, D, BD, ALIGN,
        )  # fmt: skip
        w = weigh(e, own_state[:, None], c)
        v_tile = matrix(v, from_v, j, v_row, keys, DV, BDV, 1)
        # Two half-precision terms carry the 16 leading bits of a weight, so that rounding it is not what is measured.
        near = w.to(v_tile.dtype)
        out = tl.dot(near, v_tile, out, input_precision=PRECISION)
        if v_tile.dtype != tl.float32:
            out = tl.dot((w - near.to(tl.float32)).to(v_tile.dtype), v_tile, out)
    z_tile = matrix(z, tl.load(z_at + n), i, z_row, queries, DV, BDV, 1).to(tl.float32)
    rows = (i < queries)[:, None]
    off = tl.where(rows, out - z_tile, 0.0)
    here = n * tl.num_programs(0) + tl.program_id(0)
    tl.store(error + here, tl.sum(tl.sum(off * off, axis=1), axis=0))
    tl.store(norm + here, tl.sum(tl.sum(z_tile * z_tile, axis=1), axis=0))
