"""The k largest weights of every row, or contributions of largest size. A program owns a block of queries and looks at
the keys they see.

A block of keys is searched only as often as some row finds in it a number above the least of its best so far.

What is compared is the energy of a weight, whose order is that of the weights of a row, and of a contribution
`size_code`.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from .row_state_tile_triton import rows_of, whole_blocks
from .weight_functions_triton import (
    ADDRESSES,
    LENGTHS,
    contribution,
    energies,
    matrix,
    number_of_code,
    size_code,
    weigh,
)


@triton.jit
def scores(
    q_tile, g_tile, k, v, from_k, from_v, k_row, v_row, keys, i_place, j, low, high, state, scale, c, cap,
    slope, key0,
    MASKED: tl.constexpr, DIRECTED: tl.constexpr, FINITE: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, ALIGN: tl.constexpr, PRODUCT_ALIGN: tl.constexpr,
):  # fmt: skip
    """What is compared, of a block of queries and the keys j: [BM, BN]. With MASKED the least where a key is hidden."""
    s = tl.dot(q_tile, tl.trans(matrix(k, from_k, j, k_row, keys, D, BD, ALIGN)), input_precision=PRECISION)
    score = energies(s, i_place[:, None], key0 + j[None, :], scale, cap, slope, CAP, ALIBI)
    if DIRECTED:
        v_tile = matrix(v, from_v, j, v_row, keys, DV, BDV, PRODUCT_ALIGN)
        product = tl.dot(g_tile, tl.trans(v_tile), input_precision=PRECISION)
        w = weigh(score, state[:, None], c)
        score = size_code(contribution(w, product, FINITE))
    if MASKED:
        none: tl.constexpr = -0x80000000 if DIRECTED else float("-inf")
        score = tl.where((j[None, :] >= low[:, None]) & (j[None, :] < high[:, None]), score, none)
    return score


@triton.jit
def keep_best(score, at, kept, keys_kept, least, NONE: tl.constexpr, BN: tl.constexpr, SLOTS: tl.constexpr):
    """The best so far of each row, joined with a block of keys. It is searched as often as a row finds a better one."""
    col, slots = tl.arange(0, BN), tl.arange(0, SLOTS)
    most = tl.max(score, axis=1)
    while tl.max((most > least).to(tl.int32), axis=0) > 0:
        better = most > least
        # The first column that holds the maximum, and the first slot that holds the least.
        which = tl.min(tl.where(score == most[:, None], col[None, :], BN), axis=1)
        worst = tl.min(tl.where(kept == tl.min(kept, axis=1)[:, None], slots[None, :], SLOTS), axis=1)
        hit = better[:, None] & (slots[None, :] == worst[:, None])
        kept = tl.where(hit, most[:, None], kept)
        keys_kept = tl.where(hit, at + which[:, None], keys_kept)
        score = tl.where(col[None, :] == which[:, None], NONE, score)
        least = tl.min(kept, axis=1)
        most = tl.max(score, axis=1)
    return kept, keys_kept, least


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def top(
    q, k, g, v, q_at, k_at, g_at, v_at, state, place, slopes, start, stop, values, indices, queries,
    keys, q_row, k_row, g_row, v_row, bound_n, key0, scale, c, cap, count,
    CAP: tl.constexpr, ALIBI: tl.constexpr, BOUNDED: tl.constexpr, DIRECTED: tl.constexpr, FINITE: tl.constexpr,
    SLOTS: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, ALIGN: tl.constexpr, PRODUCT_ALIGN: tl.constexpr,
):  # fmt: skip
    """The `count` largest weights, or contributions by size, of every row, largest first: [n, q, count]."""
    n, i, real, q_tile, slope, i_place, low, high, since, until, from_k = rows_of(
        q, q_at, k_at, place, slopes, start, stop, queries, keys, q_row, bound_n, ALIBI, BOUNDED, D, BD, BM, ALIGN
    )
    own_state = tl.load(state + n * queries + i, mask=real, other=float("inf"))
    kind: tl.constexpr = tl.int32 if DIRECTED else tl.float32
    none: tl.constexpr = -0x80000000 if DIRECTED else float("-inf")
    over: tl.constexpr = 0x7FFFFFFF if DIRECTED else float("inf")
    if DIRECTED:
        g_tile, from_v = matrix(g, tl.load(g_at + n), i, g_row, queries, DV, BDV, PRODUCT_ALIGN), tl.load(v_at + n)
    else:
        g_tile, from_v = q_tile, from_k
    slots = tl.arange(0, SLOTS)
    # Slots past `count` hold a score that nothing replaces.
    kept = tl.full((BM, SLOTS), none, kind)
    kept = tl.where((slots < count)[None, :], kept, over)
    keys_kept = tl.zeros((BM, SLOTS), tl.int32)
    reached = tl.where(real, none, over)
    begin, end = whole_blocks(low, high, since, until, BN)
    for at in range(begin, end, BN):
        score = scores(
            q_tile, g_tile, k, v, from_k, from_v, k_row, v_row, keys, i_place, at + tl.arange(0, BN), low, high,
            own_state, scale, c, cap, slope, key0, False, DIRECTED, FINITE, CAP,
            ALIBI, PRECISION, D, BD, DV, BDV, ALIGN, PRODUCT_ALIGN,
        )  # fmt: skip
        kept, keys_kept, reached = keep_best(score, at, kept, keys_kept, reached, none, BN, SLOTS)
    # Before and after these are blocks of which rows see a part.
    for step in range(0, until - since - (end - begin), BN):
        at = since + step + tl.where(since + step < begin, 0, end - begin)
        score = scores(
            q_tile, g_tile, k, v, from_k, from_v, k_row, v_row, keys, i_place, at + tl.arange(0, BN), low, high,
            own_state, scale, c, cap, slope, key0, True, DIRECTED, FINITE, CAP,
            ALIBI, PRECISION, D, BD, DV, BDV, ALIGN, PRODUCT_ALIGN,
        )  # fmt: skip
        kept, keys_kept, reached = keep_best(score, at, kept, keys_kept, reached, none, BN, SLOTS)
    kept = tl.where((slots < count)[None, :], kept, none)
    keys_kept = tl.where(slots[None, :] < count, keys_kept, 0x7FFFFFFF)
    out = (n * queries + i.to(tl.int64)) * count
    # Whatever a NaN does to a row's energies, all its weights are NaN, and any keys are as good as others.
    lost = own_state != own_state
    for rank in range(count):
        best = tl.max(kept, axis=1)
        # Of equal weights the first key first.
        key = tl.min(tl.where(kept == best[:, None], keys_kept, 0x7FFFFFFF), axis=1)
        kept = tl.where(keys_kept == key[:, None], none, kept)
        keys_kept = tl.where(keys_kept == key[:, None], 0x7FFFFFFF, keys_kept)
        # Past the keys a row sees come hidden ones, of weight 0: those before its interval, then those after.
        extra = rank - (high - low)
        key = tl.where(extra < 0, key, tl.where(extra < low, extra, tl.maximum(high, low) + extra - low))
        key = tl.where(lost | (key >= keys), rank, key)
        if DIRECTED:
            value = tl.where(lost, float("nan"), number_of_code(best))
        else:
            value = weigh(tl.where(lost, 0.0, best), own_state, c)
        tl.store(values + out + rank, tl.where((extra < 0) | lost, value, 0.0), mask=real)
        tl.store(indices + out + rank, key.to(tl.int64), mask=real)
