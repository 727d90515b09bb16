"""The largest weights of every row.

Short rows: `top` keeps each row's best in registers and searches a block of keys as often as it holds a better one.

Long rows: `walk` leaves MARKS numbers per row, each the largest energy in one share of the blocks of keys. The `count`
largest marks are energies of `count` different keys, so the least of them is a bound that the `count` best keys all
reach, and hardly any other does: where the shares are alike, 10.6 on average for 8 of 16 shares. `collect` writes down
which groups of keys reach it, `pick` looks at those again. A row with more groups than fit is left to `top`.
"""
# mypy: ignore-errors
# ruff: noqa: SIM108

import triton
import triton.language as tl

from .rows_triton import block_of, rows_of
from .weigh_triton import energies, matrix, unordered, weigh

LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def _candidate(kept, keys_kept, least, e, j):
    """The best of each row of e, the first key that has it, the place it would take, and whether it is better.

    Better is larger, or equal and of an earlier key, so that no order of asking changes what is kept.
    """
    most = tl.max(e, axis=1)
    key = tl.min(tl.where(e == most[:, None], j, 0x7FFFFFFF), axis=1)
    last = tl.max(tl.where(kept == least[:, None], keys_kept, -1), axis=1)
    better = (most > least) | ((most == least) & (key < last) & (most > float("-inf")))
    return most, key, last, better


@triton.jit
def _absorbed(kept, keys_kept, least, e, j):
    """The best of the kept and of the energies e [BM, any] of keys j; a row with nothing better waits for others."""
    most, key, last, better = _candidate(kept, keys_kept, least, e, j)
    while tl.max(better.to(tl.int32), axis=0) > 0:
        hit = better[:, None] & (kept == least[:, None]) & (keys_kept == last[:, None])
        kept = tl.where(hit, most[:, None], kept)
        keys_kept = tl.where(hit, key[:, None], keys_kept)
        least = tl.min(kept, axis=1)
        e = tl.where(j == key[:, None], float("-inf"), e)
        most, key, last, better = _candidate(kept, keys_kept, least, e, j)
    return kept, keys_kept, least


@triton.jit
def _nothing(count, BM: tl.constexpr, SLOTS: tl.constexpr):
    """Slots that hold nothing yet; those past `count` hold +∞, which nothing replaces."""
    slots = tl.arange(0, SLOTS)
    kept = tl.zeros((BM, SLOTS), tl.float32) + tl.where(slots < count, float("-inf"), float("inf"))[None, :]
    return kept, tl.zeros((BM, SLOTS), tl.int32) + (0x7FFFFFFF - slots)[None, :]


@triton.jit
def _written(
    kept, keys_kept, values, indices, row, real, low, high, own_state, c, count,
    KIND: tl.constexpr, POWER: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Weights and keys of what was kept, largest first, of equal weights the first key first."""
    slots = tl.arange(0, SLOTS)
    kept = tl.where((slots < count)[None, :], kept, float("-inf"))
    keys_kept = tl.where(slots[None, :] < count, keys_kept, 0x7FFFFFFF)
    # Whatever a NaN does to a row's energies, all its weights are NaN, and any keys are as good as others.
    lost = own_state != own_state
    for rank in range(count):
        most = tl.max(kept, axis=1)
        key = tl.min(tl.where(kept == most[:, None], keys_kept, 0x7FFFFFFF), axis=1)
        kept = tl.where(keys_kept == key[:, None], float("-inf"), kept)
        keys_kept = tl.where(keys_kept == key[:, None], 0x7FFFFFFF, keys_kept)
        # Past the keys a row sees come hidden ones, of weight 0: those before its interval, then those after.
        extra = rank - (high - low)
        key = tl.where(extra < 0, key, tl.where(extra < low, extra, tl.maximum(high, low) + extra - low))
        key = tl.where(lost, rank, key)
        w = weigh(tl.where(lost, 0.0, most), own_state, c, KIND, POWER)
        tl.store(values + row * count + rank, tl.where((extra < 0) | lost, w, 0.0), mask=real)
        tl.store(indices + row * count + rank, key.to(tl.int64), mask=real)


@triton.jit
def top(
    q,
    k,
    q_at,
    k_at,
    state,
    place,
    slopes,
    start,
    stop,
    taken,
    values,
    indices,
    queries,
    keys,
    q_row,
    k_row,
    bound_n,
    key0,
    scale,
    c,
    cap,
    count,
    KIND: tl.constexpr,
    POWER: tl.constexpr,
    CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    BOUNDED: tl.constexpr,
    REST: tl.constexpr,
    ROOM: tl.constexpr,
    SLOTS: tl.constexpr,
    PRECISION: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """The `count` largest weights of every row: values and indices [n, q, count]. With REST, only in blocks of rows
    of which one has more candidates than ROOM.
    """
    n, i, real, q_tile, own_state, slope, i_place, low, high, since, until, from_k = rows_of(
        q, q_at, k_at, state, place, slopes, start, stop, queries, keys, q_row, bound_n,
        KIND, ALIBI, BOUNDED, True, D, BD, BM, ALIGN,
    )  # fmt: skip
    row = n * queries + i.to(tl.int64)
    wanted = True
    if REST:
        wanted = tl.max(tl.load(taken + row, mask=real, other=0), axis=0) > ROOM
    if wanted:
        kept, keys_kept = _nothing(count, BM, SLOTS)
        least = tl.full((BM,), float("-inf"), tl.float32)
        col = tl.arange(0, BN)
        for at in range(since, until, BN):
            e = block_of(
                q_tile, k, from_k, k_row, keys, i_place, at + col, low, high, own_state, scale, cap, slope, key0,
                float("-inf"), KIND, CAP, ALIBI, PRECISION, D, BD, ALIGN,
            )  # fmt: skip
            j = at + col[None, :] + tl.zeros((BM, BN), tl.int32)
            kept, keys_kept, least = _absorbed(kept, keys_kept, least, e, j)
        _written(kept, keys_kept, values, indices, row, real, low, high, own_state, c, count, KIND, POWER, SLOTS)


@triton.jit
def collect(
    q,
    k,
    q_at,
    k_at,
    state,
    place,
    slopes,
    start,
    stop,
    marks,
    taken,
    found,
    queries,
    keys,
    q_row,
    k_row,
    bound_n,
    key0,
    scale,
    c,
    cap,
    count,
    KIND: tl.constexpr,
    CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    BOUNDED: tl.constexpr,
    MARKS: tl.constexpr,
    ROOM: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ALIGN: tl.constexpr,
    BULK: tl.constexpr,
):
    """Groups of GROUP keys, BN // GROUP apart, whose best reaches the row's bound: how many, in `taken` [n, q], and the
    first key of each, in any order, in `found` [n, q, ROOM].
    """
    n, i, real, q_tile, own_state, slope, i_place, low, high, since, until, from_k = rows_of(
        q, q_at, k_at, state, place, slopes, start, stop, queries, keys, q_row, bound_n,
        KIND, ALIBI, BOUNDED, True, D, BD, BM, ALIGN,
    )  # fmt: skip
    row = n * queries + i.to(tl.int64)
    mark = tl.load(marks + row[:, None] * MARKS + tl.arange(0, MARKS)[None, :], mask=real[:, None], other=LOWEST)
    bound = tl.max(mark, axis=1)
    for _ in range(1, count):
        mark = tl.where(mark == bound[:, None], LOWEST, mark)
        bound = tl.max(mark, axis=1)
    reach = tl.where(bound == LOWEST, float("-inf"), unordered(bound))
    if BULK:
        all_k = tl.make_tensor_descriptor(
            k + from_k * ALIGN, shape=[keys, D], strides=[k_row.to(tl.int64), 1], block_shape=[BN, BD]
        )
    apart: tl.constexpr = BN // GROUP
    for at in range(since, until, BN):
        j = at + tl.arange(0, BN)
        if BULK:
            k_tile = all_k.load([at, 0])
        else:
            k_tile = matrix(k, from_k, j, k_row, keys, D, BD, ALIGN)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        e = energies(s, i_place[:, None], key0 + j[None, :], own_state[:, None], scale, cap, slope, KIND, CAP, ALIBI)
        if BOUNDED:
            e = tl.where((j[None, :] >= low[:, None]) & (j[None, :] < high[:, None]), e, float("-inf"))
        best = tl.max(tl.reshape(e, (BM, GROUP, apart)), axis=1)  # [BM, apart], within each thread
        first = at + tl.arange(0, apart)
        hit = (best >= reach[:, None]) & (best > float("-inf")) & real[:, None] & (first < keys)[None, :]
        here = tl.atomic_add(taken + row[:, None] + tl.zeros((BM, apart), tl.int64), 1, mask=hit, sem="relaxed")
        first = first[None, :] + tl.zeros((BM, apart), tl.int32)
        tl.store(found + row[:, None] * ROOM + here, first, mask=hit & (here < ROOM))


@triton.jit
def pick(
    q,
    k,
    q_at,
    k_at,
    state,
    place,
    slopes,
    start,
    stop,
    taken,
    found,
    values,
    indices,
    queries,
    keys,
    q_row,
    k_row,
    bound_n,
    key0,
    scale,
    c,
    cap,
    count,
    KIND: tl.constexpr,
    POWER: tl.constexpr,
    CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    BOUNDED: tl.constexpr,
    ROOM: tl.constexpr,
    GROUP: tl.constexpr,
    APART: tl.constexpr,
    SLOTS: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """The best of what `collect` left. A row whose candidates are fewer than it has to give is marked for `top`."""
    n, i, real, q_tile, own_state, slope, i_place, low, high, _, _, from_k = rows_of(
        q, q_at, k_at, state, place, slopes, start, stop, queries, keys, q_row, bound_n,
        KIND, ALIBI, BOUNDED, True, D, BD, BM, ALIGN,
    )  # fmt: skip
    row = n * queries + i.to(tl.int64)
    groups = tl.load(taken + row, mask=real, other=0)
    groups = tl.where(groups > ROOM, 0, groups)
    kept, keys_kept = _nothing(count, BM, SLOTS)
    least = tl.full((BM,), float("-inf"), tl.float32)
    got = tl.zeros((BM,), tl.int32)
    step = tl.arange(0, GROUP) * APART
    d = tl.arange(0, BD)
    k += from_k * ALIGN
    for at in range(tl.max(groups, axis=0)):
        j = tl.load(found + row * ROOM + at, mask=at < groups, other=0)[:, None] + step[None, :]  # [BM, GROUP]
        there = (at < groups)[:, None] & (j >= low[:, None]) & (j < high[:, None])
        here = k + j.to(tl.int64)[:, :, None] * k_row + d[None, None, :]
        k_tile = tl.load(here, mask=there[:, :, None] & (d < D)[None, None, :], other=0.0)  # [BM, GROUP, BD]
        s = tl.sum(q_tile.to(tl.float32)[:, None, :] * k_tile.to(tl.float32), axis=2)
        e = energies(s, i_place[:, None], key0 + j, own_state[:, None], scale, cap, slope, KIND, CAP, ALIBI)
        e = tl.where(there, e, float("-inf"))
        got += tl.sum((e > float("-inf")).to(tl.int32), axis=1)
        kept, keys_kept, least = _absorbed(kept, keys_kept, least, e, j)
    short = got < tl.minimum(count, high - low)
    tl.store(taken + row, ROOM + 1, mask=real & short)
    _written(kept, keys_kept, values, indices, row, real, low, high, own_state, c, count, KIND, POWER, SLOTS)
