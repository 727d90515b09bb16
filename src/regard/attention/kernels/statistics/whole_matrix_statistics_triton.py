"""Statistics of the whole attention matrix in one walk over q and k, given the row state.

A program owns some blocks of keys (its strip) and walks over queries with each of them. Everything then lies where it
is cheap: the sums over queries (`received`) stay in registers until a block of keys is done, the sums over the keys of
one block are a reduction inside a thread and two shuffles. What a row gets from one program goes to that program's own
slot [n, strip, q], added up afterwards: no two programs add to one place, so the order never changes. Maxima are joined
by integer atomics, whose result no order changes.
"""
# mypy: ignore-errors
# Triton compiles neither `in` nor every conditional expression:
# ruff: noqa: SIM108, SIM109

import triton
import triton.language as tl

from .weight_functions_triton import HARD, PROPORTIONAL, SOFTMAX, energies, log2_weigh, matrix, ordered, weigh


@triton.jit
def walk(
    q, k, q_at, k_at, state, anchor, place, slopes, start, stop, edges, ranges, row_cells, chosen, entropy, on, mass,
    received, best, cells, queries, keys, q_row, k_row, bound_n, range_n, chosen_n, blocks, first_strip, by_strip,
    by_turn, turns, map_rows, map_cols, per_cell, key0, scale, c, cap,
    ANCHORED: tl.constexpr, KIND: tl.constexpr, POWER: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
    BOUNDED: tl.constexpr,
    EDGES: tl.constexpr, ENTROPY: tl.constexpr, ON: tl.constexpr, MASS: tl.constexpr, RECEIVED: tl.constexpr,
    BEST: tl.constexpr, MAP: tl.constexpr, CELLS: tl.constexpr, GROUP: tl.constexpr, CANDIDATES: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SLABS: tl.constexpr, ALIGN: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    strip, n, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    strips, parts = tl.num_programs(0), tl.num_programs(2)
    own = (n.to(tl.int64) * strips + strip) * queries  # this program's slot among the row sums
    entropy, on, mass = entropy + own, on + own, mass + own
    from_q, from_k = tl.load(q_at + n), tl.load(k_at + n)
    slope = tl.load(slopes + n) if ALIBI else 0.0
    if BULK:  # blocks of queries by the copy engine: one thread asks, none computes addresses
        all_q = tl.make_tensor_descriptor(
            q + from_q * ALIGN, shape=[queries, D], strides=[q_row.to(tl.int64), 1], block_shape=[BM, BD]
        )
    state += n.to(tl.int64) * queries
    anchor += n.to(tl.int64) * queries
    best += n.to(tl.int64) * queries
    cells += n.to(tl.int64) * map_rows * map_cols
    received += (n.to(tl.int64) * parts + part) * keys
    start, stop, chosen = start + n * bound_n, stop + n * bound_n, chosen + n.to(tl.int64) * chosen_n
    ranges += n * range_n
    for turn in range(turns):
        block = (first_strip + strip) * by_strip + turn * by_turn
        if block < blocks:
            first, last = tl.load(edges + 2 * block), tl.load(edges + 2 * block + 1)  # keys first ≤ j < last
            j = first + tl.arange(0, BN)
            keys_t = tl.trans(matrix(k, from_k, j, k_row, keys, D, BD, ALIGN))  # [BD, BN]
            picked = tl.load(chosen + j, mask=j < last, other=0.0) if ON else 0.0
            taken = tl.zeros((BM // 16 // SLABS, 8, BN), tl.float32)
            # Query blocks that see part of these keys, then a run that sees all of them, then part again.
            for stretch in tl.static_range(0 if EDGES else 1, 3 if EDGES else 2):
                at = ranges + 4 * block + stretch
                begin = tl.load(at)
                begin += (part + parts - begin % parts) % parts  # of these, every `parts`-th is this program's
                for rows in range(begin, tl.load(at + 1), parts):
                    i = rows * BM + tl.arange(0, BM)
                    real = i < queries
                    # Beyond the last query: a state that gives no weight.
                    own_state = tl.load(
                        state + i,
                        mask=real,
                        other=-1 if KIND == HARD else 0.0 if KIND == PROPORTIONAL else float("inf"),
                    )
                    own_anchor = tl.load(anchor + i, mask=real, other=1.0)[:, None] if ANCHORED else 0.0
                    if BULK:
                        q_tile = all_q.load([rows * BM, 0])
                    else:
                        q_tile = matrix(q, from_q, i, q_row, queries, D, BD, ALIGN)
                    s = tl.dot(q_tile, keys_t, input_precision=PRECISION)
                    where = tl.load(place + i, mask=real, other=0)[:, None] if ALIBI else 0
                    e = energies(s, where, key0 + j[None, :], own_state[:, None], scale, cap, slope, KIND, CAP, ALIBI)
                    if stretch != 1:
                        real_key = (j < last)[None, :]
                        seen = real_key
                        if BOUNDED:
                            low = tl.load(start + i, mask=real, other=0)[:, None]
                            high = tl.load(stop + i, mask=real, other=0)[:, None]
                            seen = seen & (j[None, :] >= low) & (j[None, :] < high)
                        e = tl.where(seen, e, 0.0 if KIND == PROPORTIONAL or KIND == HARD else float("-inf"))
                    # A hidden key has weight 0, which may be the largest there is; a key that does not exist has none.
                    existing = e if stretch == 1 else tl.where(real_key, e, float("-inf"))
                    if BEST:
                        # The best of every CANDIDATES keys stays within a thread; which of them it is, is asked later.
                        few = tl.max(tl.reshape(existing, (BM, CANDIDATES, BN // CANDIDATES)), axis=1)
                        top, slot = tl.max(few, axis=1, return_indices=True)  # [BM]
                        code = block * (BN // CANDIDATES) + slot
                        packed = (ordered(top).to(tl.int64) << 32) | (0x7FFFFFFF - code).to(tl.int64)
                        tl.atomic_max(best + i, packed, mask=real, sem="relaxed")
                    if MAP:
                        if BEST and CELLS == 1:
                            wide = top[:, None]
                        else:
                            wide = tl.max(tl.reshape(existing, (BM, CELLS, BN // CELLS)), axis=2)  # [BM, CELLS]
                        pool = weigh(wide, own_anchor, own_state[:, None], c, KIND, POWER, ANCHORED)
                        # Weights are ≥ 0, where the order of floats is that of their bits.
                        pool = tl.max(tl.reshape(pool, (BM // GROUP, GROUP, CELLS)), axis=1).to(tl.int32, bitcast=True)
                        row = rows * BM + GROUP * tl.arange(0, BM // GROUP)
                        row_cell = tl.load(row_cells + row, mask=row < queries, other=0)
                        col = (block // per_cell) * CELLS + tl.arange(0, CELLS)
                        cell = cells + row_cell[:, None] * map_cols + col[None, :]
                        tl.atomic_max(
                            cell, pool, mask=(row < queries)[:, None] & (col < map_cols)[None, :], sem="relaxed"
                        )
                    if ENTROPY or ON or MASS or RECEIVED:
                        if KIND == SOFTMAX and stretch == 1 and not ANCHORED:
                            log = e * c - own_state[:, None]
                            w = tl.exp2(log)
                        elif KIND == SOFTMAX:
                            log = log2_weigh(e, own_anchor, own_state[:, None], c, ANCHORED)
                            w = tl.exp2(log)
                        else:
                            w = weigh(e, own_anchor, own_state[:, None], c, KIND, POWER, ANCHORED)
                            log = tl.log2(tl.where(w > 0, w, 1.0)) if ENTROPY else w
                        if ENTROPY:
                            tl.atomic_add(entropy + i, tl.sum(w * log, axis=1), mask=real, sem="relaxed")
                        if ON:
                            tl.atomic_add(on + i, tl.sum(w * picked[None, :], axis=1), mask=real, sem="relaxed")
                        if MASS:
                            tl.atomic_add(mass + i, tl.sum(w, axis=1), mask=real, sem="relaxed")
                        if RECEIVED:
                            # A thread of the tensor core's layout holds rows r and r + 8: this sum moves nothing.
                            pairs = tl.sum(tl.reshape(w, (SLABS, BM // 16 // SLABS, 2, 8, BN)), axis=2)
                            taken += tl.sum(pairs, axis=0)
            if RECEIVED:
                tl.store(received + j, tl.sum(tl.sum(taken, axis=0), axis=0), mask=j < last)
