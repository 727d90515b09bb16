"""The k largest weights of every row. A program owns a block of queries and looks at the keys they see.

First `threshold` looks at a sample of the keys. Then `top` looks at all of them, and searches a block of keys only as
often as some row finds in it a weight above its threshold and above the least of its best so far.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from .row_state_tile_triton import block_of, rows_of
from .weight_functions_triton import ADDRESSES, LENGTHS, energies, matrix, weigh


@triton.jit
def whole_blocks(low, high, since, until, BN: tl.constexpr):
    """The blocks of BN keys that all rows see: from, to. They begin at `since`, as all blocks do."""
    begin, end = tl.max(tl.where(high > low, low, 0), axis=0), tl.min(tl.where(high > low, high, 0x7FFFFFFF), axis=0)
    begin = since + tl.cdiv(tl.maximum(begin - since, 0), BN) * BN
    end = since + tl.maximum(tl.minimum(end, until) - since, 0) // BN * BN
    return begin, tl.maximum(begin, end)


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def threshold(
    q, k, q_at, k_at, state, place, slopes, start, stop, least, queries, keys, q_row, k_row, bound_n, key0, scale, cap,
    count,
    KIND: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr, BOUNDED: tl.constexpr, SAMPLE: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """An energy that more than `count` keys of the row are above, from a sample of the keys: least [n, q].

    −∞ where the sample has fewer. `top` then passes over what is not above it.
    """
    n, i, real, q_tile, own_state, _, slope, i_place, low, high, since, until, from_k = rows_of(
        q, q_at, k_at, state, state, place, slopes, start, stop, queries, keys, q_row, bound_n,
        KIND, ALIBI, BOUNDED, True, False, D, BD, BM, ALIGN,
    )  # fmt: skip
    # Each column keeps the largest energy that it has met: BN different keys, of which the count-th is a bound.
    most = tl.full((BM, BN), float("-inf"), tl.float32)
    for at in range(since, until, BN * SAMPLE):
        # One key of each SAMPLE, in each block another one: keys may have a pattern.
        j = at + tl.arange(0, BN) * SAMPLE + (at // BN) % SAMPLE
        e = block_of(
            q_tile, k, from_k, k_row, keys, i_place, j, low, high, own_state, scale, cap, slope, key0,
            float("-inf"), KIND, CAP, ALIBI, PRECISION, D, BD, ALIGN,
        )  # fmt: skip
        most = tl.maximum(most, e)
    column = tl.arange(0, BN)[None, :]
    bound = tl.max(most, axis=1)
    for _ in range(1, count):
        which = tl.min(tl.where(most == bound[:, None], column, BN), axis=1)  # one of equal energies, not all
        most = tl.where(column == which[:, None], float("-inf"), most)
        bound = tl.max(most, axis=1)
    # Below the energy itself, which another kernel may round differently.
    bound = tl.where(bound == float("-inf"), bound, bound - tl.abs(bound) * 1e-5 - 1e-30)
    tl.store(least + n * queries + i, bound, mask=real)


@triton.jit
def keep_best(e, at, kept, keys_kept, least, floor, BN: tl.constexpr, SLOTS: tl.constexpr):
    """The best so far of each row, joined with a block of keys. It is searched as often as a row finds a better one."""
    col, slots = tl.arange(0, BN), tl.arange(0, SLOTS)
    most = tl.max(e, axis=1)
    while tl.max((most > least).to(tl.int32), axis=0) > 0:
        better = most > least
        # The first column that holds the maximum, and the first slot that holds the least.
        which = tl.min(tl.where(e == most[:, None], col[None, :], BN), axis=1)
        worst = tl.min(tl.where(kept == tl.min(kept, axis=1)[:, None], slots[None, :], SLOTS), axis=1)
        hit = better[:, None] & (slots[None, :] == worst[:, None])
        kept = tl.where(hit, most[:, None], kept)
        keys_kept = tl.where(hit, at + which[:, None], keys_kept)
        e = tl.where(col[None, :] == which[:, None], float("-inf"), e)
        least = tl.maximum(tl.min(kept, axis=1), floor)
        most = tl.max(e, axis=1)
    return kept, keys_kept, least


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def top(
    q, k, q_at, k_at, state, anchor, place, slopes, start, stop, least, values, indices, queries, keys, q_row, k_row,
    bound_n, key0, scale, c, cap, count,
    ANCHORED: tl.constexpr, KIND: tl.constexpr, POWER: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
    BOUNDED: tl.constexpr, SLOTS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """The `count` largest weights of every row, largest first: values and indices [n, q, count]."""
    n, i, real, q_tile, own_state, own_anchor, slope, i_place, low, high, since, until, from_k = rows_of(
        q, q_at, k_at, state, anchor, place, slopes, start, stop, queries, keys, q_row, bound_n,
        KIND, ALIBI, BOUNDED, True, ANCHORED, D, BD, BM, ALIGN,
    )  # fmt: skip
    slots = tl.arange(0, SLOTS)
    # Slots past `count` hold +∞, which nothing replaces.
    kept = tl.zeros((BM, SLOTS), tl.float32) + tl.where(slots < count, float("-inf"), float("inf"))[None, :]
    keys_kept = tl.zeros((BM, SLOTS), tl.int32)
    floor = tl.load(least + n * queries + i, mask=real, other=float("inf"))
    reached = floor
    begin, end = whole_blocks(low, high, since, until, BN)
    for at in range(begin, end, BN):
        k_tile = matrix(k, from_k, at + tl.arange(0, BN), k_row, keys, D, BD, ALIGN)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        j = key0 + at + tl.arange(0, BN)
        e = energies(s, i_place[:, None], j[None, :], own_state[:, None], scale, cap, slope, KIND, CAP, ALIBI)
        kept, keys_kept, reached = keep_best(e, at, kept, keys_kept, reached, floor, BN, SLOTS)
    # Before and after these are blocks of which rows see a part.
    for step in range(0, until - since - (end - begin), BN):
        at = since + step + tl.where(since + step < begin, 0, end - begin)
        e = block_of(
            q_tile, k, from_k, k_row, keys, i_place, at + tl.arange(0, BN), low, high, own_state, scale, cap, slope,
            key0, float("-inf"), KIND, CAP, ALIBI, PRECISION, D, BD, ALIGN,
        )  # fmt: skip
        kept, keys_kept, reached = keep_best(e, at, kept, keys_kept, reached, floor, BN, SLOTS)
    kept = tl.where((slots < count)[None, :], kept, float("-inf"))
    keys_kept = tl.where(slots[None, :] < count, keys_kept, 0x7FFFFFFF)
    out = (n * queries + i.to(tl.int64)) * count
    # Whatever a NaN does to a row's energies, all its weights are NaN, and any keys are as good as others.
    lost = own_state != own_state
    for rank in range(count):
        most = tl.max(kept, axis=1)
        # Of equal weights the first key first.
        key = tl.min(tl.where(kept == most[:, None], keys_kept, 0x7FFFFFFF), axis=1)
        kept = tl.where(keys_kept == key[:, None], float("-inf"), kept)
        keys_kept = tl.where(keys_kept == key[:, None], 0x7FFFFFFF, keys_kept)
        # Past the keys a row sees come hidden ones, of weight 0: those before its interval, then those after.
        extra = rank - (high - low)
        key = tl.where(extra < 0, key, tl.where(extra < low, extra, tl.maximum(high, low) + extra - low))
        key = tl.where(lost, rank, key)
        w = weigh(tl.where(lost, 0.0, most), own_anchor, own_state, c, KIND, POWER, ANCHORED)
        tl.store(values + out + rank, tl.where((extra < 0) | lost, w, 0.0), mask=real)
        tl.store(indices + out + rank, key.to(tl.int64), mask=real)
