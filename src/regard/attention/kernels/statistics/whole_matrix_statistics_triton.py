"""Statistics of the whole attention matrix in one walk over q and k, given the row state.

A program owns some blocks of keys (its strip) and walks over queries with each of them. Everything then lies where it
is cheap: the sums over queries (`received`) stay in registers until a block of keys is done, the sums over the keys of
one block are a reduction inside a thread and two shuffles. What a row gets from one program goes to that program's own
slot [n, strip, q], added up afterwards: no two programs write to one place, so the order never changes, and what is
there is read before the products, which hide the wait. Maxima are joined by integer atomics, whose result no order
changes.

With DIRECTED the same is asked of contributions C_ij = w_ij (g_i · v_j) instead of weights: a second product, signs,
and sums of sizes beside sums.
"""
# mypy: ignore-errors
# Triton compiles neither `in` nor every conditional expression:

import triton
import triton.language as tl

from .weight_functions_triton import ADDRESSES, LENGTHS, contribution, energies, matrix, weigh


@triton.jit
def group_max(x, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, QUADS: tl.constexpr):
    """The maximum of every GROUP consecutive keys [BM, BN / GROUP], keys and groups in the order of `key_group`."""
    if not QUADS:
        x = tl.max(tl.reshape(x, (BM, BN // GROUP, GROUP)), axis=2)
    elif GROUP > 1:
        x = tl.max(tl.reshape(x, (BM, BN // 2, 2)), axis=2)  # pairs: [BM, BN / 8 · 4]
        if GROUP > 2:
            x = tl.reshape(tl.max(tl.reshape(x, (BM, BN // 4 // GROUP, GROUP // 2, 4)), axis=2), (BM, BN // GROUP))
    return x


@triton.jit
def key_group(at, BN: tl.constexpr, GROUP: tl.constexpr, QUADS: tl.constexpr):
    """Which group of GROUP consecutive keys stands at this place of a row.

    A thread of the tensor core's layout holds columns 8x + 2t and 8x + 2t + 1 for one t of four. With QUADS these are
    BN / 4 consecutive keys, so that a maximum over some consecutive keys moves nothing between threads.
    """
    if not QUADS:
        group = at
    elif GROUP == 1:
        group = at // 2 % 4 * (BN // 4) + at // 8 * 2 + at % 2
    else:
        group = at % 4 * (BN // 4 // GROUP) + at // 4
    return group


@triton.jit
def part_offset(part, first, parts):
    """How far after `first` the first number is that leaves the remainder `part` when divided by `parts`."""
    return (part - first % parts + parts) % parts


@triton.jit
def part_count(offset, length, parts):
    """How many numbers offset, offset + parts, … are below `length`."""
    return tl.maximum(length - offset + parts - 1, 0) // parts


@triton.jit
def pooled(e, state, c, DIRECTED: tl.constexpr):
    """What a map joins: codes of contributions as they are; of the largest energies the weights, 0 if there is none.

    Weights are ≥ 0, where the order of floats is that of their bits.
    """
    if DIRECTED:
        code = e
    else:
        w = tl.where(e == float("-inf"), 0.0, weigh(e, state, c))
        code = w.to(tl.int32, bitcast=True)
    return code


@triton.jit
def map_code(x):
    """Unsigned numbers in the order of |x|, of two with one size the negative last: the bits of x, its sign the lowest.

    One instruction. Contributions are negated, so that of two with one size the positive is last.
    """
    bits = x.to(tl.uint32, bitcast=True)
    return (bits << 1) | (bits >> 31)


@triton.jit
def join_cells(
    pool, col, col_exists, row_cells, first, queries, cells, map_cols,
    BM: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Raise the cells [map_rows, map_cols] to the codes `pool` [BM, columns] of rows from `first` on, GROUP at a time.

    A cell is at least GROUP rows high, so a group meets two cells at most, and with SPLIT some groups do.
    """
    groups: tl.constexpr = BM // GROUP
    columns: tl.constexpr = pool.shape[1]
    head = first + GROUP * tl.arange(0, groups)
    upper = tl.load(row_cells + head, mask=head < queries, other=0)
    exists = (head < queries)[:, None] & col_exists[None, :]
    if SPLIT:
        lower = tl.load(row_cells + tl.minimum(head + GROUP, queries) - 1, mask=head < queries, other=0)
        i = first + tl.arange(0, BM)
        own = tl.load(row_cells + i, mask=i < queries, other=0)
        down = own > tl.load(row_cells + i // GROUP * GROUP, mask=i < queries, other=0)
        rest = tl.max(tl.reshape(tl.where(down[:, None], pool, 0), (groups, GROUP, columns)), axis=1)
        below = cells + lower[:, None] * map_cols + col[None, :]
        tl.atomic_max(below, rest, mask=exists & (lower > upper)[:, None], sem="relaxed")
        pool = tl.where(down[:, None], 0, pool)
    pool = tl.max(tl.reshape(pool, (groups, GROUP, columns)), axis=1)
    at = cells + upper[:, None] * map_cols + col[None, :]
    tl.atomic_max(at, pool, mask=exists, sem="relaxed")


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def walk(
    q, k, g, v, q_at, k_at, g_at, v_at, state, place, slopes, start, stop, edges, ranges, row_cells, col_cells,
    chosen, entropy, on, sums, received, received_size, cells, queries, keys, q_row, k_row, g_row, v_row,
    bound_n, range_n, chosen_n, blocks, turns, map_rows, map_cols, key0, scale, c, cap,
    CAP: tl.constexpr, ALIBI: tl.constexpr, BOUNDED: tl.constexpr, DIRECTED: tl.constexpr, FINITE: tl.constexpr,
    ENTROPY: tl.constexpr, ON: tl.constexpr,
    SUMS: tl.constexpr, SIZES: tl.constexpr, RECEIVED: tl.constexpr, RECEIVED_SIZE: tl.constexpr,
    MAP: tl.constexpr, SPLIT: tl.constexpr, ROW_GROUP: tl.constexpr, COL_GROUP: tl.constexpr,
    PRECISION: tl.constexpr, PRODUCT_PRECISION: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SLABS: tl.constexpr,
    ALIGN: tl.constexpr, PRODUCT_ALIGN: tl.constexpr,
):  # fmt: skip
    strip, n, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    strips, parts = tl.num_programs(0), tl.num_programs(2)
    own = (n.to(tl.int64) * strips + strip) * queries  # this program's slot among the row sums
    entropy, on, sums = entropy + own, on + own, sums + own
    # Kinds of sums, as far as asked for: of contributions, of sizes, of sizes times their logarithms, over chosen keys.
    plane = tl.num_programs(1).to(tl.int64) * strips * queries
    CHOSEN: tl.constexpr = 1 + (2 if ENTROPY else 1 if SIZES else 0)
    from_q, from_k = tl.load(q_at + n), tl.load(k_at + n)
    slope = tl.load(slopes + n) if ALIBI else 0.0
    if DIRECTED:
        from_g, from_v = tl.load(g_at + n), tl.load(v_at + n)
    state += n.to(tl.int64) * queries
    cells += n.to(tl.int64) * map_rows * map_cols
    received += (n.to(tl.int64) * parts + part) * keys
    received_size += (n.to(tl.int64) * parts + part) * keys
    start, stop, chosen = start + n * bound_n, stop + n * bound_n, chosen + n.to(tl.int64) * chosen_n
    ranges += n * range_n
    QUADS: tl.constexpr = q.dtype.element_ty != tl.float32  # whose products are not the tensor core's
    order = key_group(tl.arange(0, BN), BN, 1, QUADS)
    none: tl.constexpr = 0 if DIRECTED else float("-inf")
    for turn in range(turns):
        # Every second turn the strips go in reverse: under a causal mask later keys are seen by fewer queries.
        block = turn * strips + tl.where(turn % 2 == 1, strips - 1 - strip, strip)
        if block < blocks:
            first, last = tl.load(edges + 2 * block), tl.load(edges + 2 * block + 1)  # keys first ≤ j < last
            j = first + order
            keys_t = tl.trans(matrix(k, from_k, j, k_row, keys, D, BD, ALIGN))  # [BD, BN]
            picked = tl.load(chosen + j, mask=j < last, other=0.0) if ON else 0.0
            if DIRECTED:
                # Negated, and with them the contributions: see `map_code`.
                values_t = tl.trans(-matrix(v, from_v, j, v_row, keys, DV, BDV, PRODUCT_ALIGN))  # [BDV, BN]
            taken = tl.zeros((BM // 16 // SLABS, 8, BN), tl.float32)
            taken_size = tl.zeros((BM // 16 // SLABS, 8, BN), tl.float32)
            if MAP:
                of_group = first + COL_GROUP * key_group(tl.arange(0, BN // COL_GROUP), BN, COL_GROUP, QUADS)
                col_exists = of_group < last
                col = tl.load(col_cells + of_group, mask=col_exists, other=0)
            if MAP and SPLIT:
                # The keys of a group that lie in the next cell: a cell is at least COL_GROUP keys wide.
                own_cell = tl.load(col_cells + first + order // COL_GROUP * COL_GROUP, mask=j < last, other=0)
                beyond = (tl.load(col_cells + j, mask=j < last, other=0) > own_cell)[None, :]
            # Blocks of queries: from `begin` on they see some of these keys, from `run` to `stopped` all of them.
            begin, run = tl.load(ranges + 4 * block), tl.load(ranges + 4 * block + 1)
            stopped, end = tl.load(ranges + 4 * block + 2), tl.load(ranges + 4 * block + 3)
            # A program takes the blocks of queries `rows` with rows % parts == part, for every block of keys: so each
            # row's sums have one owner, and one order. First those that see part of the keys, before and after the run.
            before, after = part_offset(part, begin, parts), part_offset(part, stopped, parts)
            early = part_count(before, run - begin, parts)
            late = part_count(after, end - stopped, parts)
            inner = part_offset(part, run, parts)
            for whole in tl.static_range(2):
                for step in range(part_count(inner, stopped - run, parts) if whole else early + late):
                    if whole:
                        rows = run + inner + step * parts
                    else:
                        rows = tl.where(
                            step < early, begin + before + step * parts, stopped + after + (step - early) * parts
                        )
                    i = rows * BM + tl.arange(0, BM)
                    real = i < queries
                    # Beyond the last query: a state that gives no weight.
                    own_state = tl.load(state + i, mask=real, other=float("inf"))
                    if ENTROPY and not DIRECTED:
                        old_entropy = tl.load(entropy + i, mask=real, other=0.0)
                    if ON and not DIRECTED:
                        old_on = tl.load(on + i, mask=real, other=0.0)
                    if SUMS:
                        old_total = tl.load(sums + i, mask=real, other=0.0)
                        if SIZES:
                            old_sizes = tl.load(sums + plane + i, mask=real, other=0.0)
                        if ENTROPY:
                            old_logs = tl.load(sums + 2 * plane + i, mask=real, other=0.0)
                        if ON:
                            old_chosen = tl.load(sums + CHOSEN * plane + i, mask=real, other=0.0)
                    q_tile = matrix(q, from_q, i, q_row, queries, D, BD, ALIGN)
                    s = tl.dot(q_tile, keys_t, input_precision=PRECISION)
                    where = tl.load(place + i, mask=real, other=0)[:, None] if ALIBI else 0
                    e = energies(s, where, key0 + j[None, :], scale, cap, slope, CAP, ALIBI)
                    existing = e
                    if not whole:
                        exists = (j < last)[None, :]
                        seen = exists
                        if BOUNDED:
                            low = tl.load(start + i, mask=real, other=0)[:, None]
                            high = tl.load(stop + i, mask=real, other=0)[:, None]
                            seen = seen & (j[None, :] >= low) & (j[None, :] < high)
                        e = tl.where(seen, e, float("-inf"))
                        # A hidden key has weight 0, which may be the largest; one that does not exist has none.
                        existing = tl.where(exists, e, float("-inf"))
                    if DIRECTED:
                        g_tile = matrix(g, from_g, i, g_row, queries, DV, BDV, PRODUCT_ALIGN)
                        product = tl.dot(g_tile, values_t, input_precision=PRODUCT_PRECISION)
                        w = weigh(e, own_state[:, None], c)
                        x = contribution(w, product, FINITE)
                        if MAP:
                            existing = map_code(x)
                    if MAP:
                        if SPLIT:
                            right = group_max(tl.where(beyond, existing, none), BM, BN, COL_GROUP, QUADS)
                            join_cells(
                                pooled(right, own_state[:, None], c, DIRECTED),
                                col + 1, col_exists & (col + 1 < map_cols), row_cells, rows * BM, queries, cells,
                                map_cols, BM, ROW_GROUP, SPLIT,
                            )  # fmt: skip
                            left = group_max(tl.where(beyond, none, existing), BM, BN, COL_GROUP, QUADS)
                        else:
                            left = group_max(existing, BM, BN, COL_GROUP, QUADS)  # [BM, groups]
                        join_cells(
                            pooled(left, own_state[:, None], c, DIRECTED), col,
                            col_exists, row_cells, rows * BM, queries, cells, map_cols, BM, ROW_GROUP, SPLIT,
                        )  # fmt: skip
                    if not DIRECTED and (ENTROPY or ON or RECEIVED):
                        log = e * c - own_state[:, None]
                        if not whole:  # keep −∞ out of w · log w, and let NaN through
                            log = tl.maximum(log, -1e30, propagate_nan=tl.PropagateNan.ALL)
                        x = tl.exp2(log)
                        if ENTROPY:
                            tl.store(entropy + i, old_entropy + tl.sum(x * log, axis=1), mask=real)
                        if ON:
                            tl.store(on + i, old_on + tl.sum(x * picked[None, :], axis=1), mask=real)
                    if SUMS:
                        size = tl.abs(x)
                        tl.store(sums + i, old_total - tl.sum(x, axis=1), mask=real)
                        if SIZES:
                            tl.store(sums + plane + i, old_sizes + tl.sum(size, axis=1), mask=real)
                        if ENTROPY:
                            logs = tl.sum(size * tl.log2(size + 2e-38), axis=1)
                            tl.store(sums + 2 * plane + i, old_logs + logs, mask=real)
                        if ON:
                            of_chosen = tl.sum(x * picked[None, :], axis=1)
                            tl.store(sums + CHOSEN * plane + i, old_chosen - of_chosen, mask=real)
                    if RECEIVED:
                        # A thread of the tensor core's layout holds rows r and r + 8: this sum moves nothing.
                        pairs = tl.sum(tl.reshape(x, (SLABS, BM // 16 // SLABS, 2, 8, BN)), axis=2)
                        taken += tl.sum(pairs, axis=0)
                    if RECEIVED_SIZE:
                        pairs = tl.sum(tl.reshape(tl.abs(x), (SLABS, BM // 16 // SLABS, 2, 8, BN)), axis=2)
                        taken_size += tl.sum(pairs, axis=0)
            if ENTROPY or ON or SUMS:
                tl.debug_barrier()  # other threads may read for the next block what these have written
            if RECEIVED:
                of_keys = tl.sum(tl.sum(taken, axis=0), axis=0)
                tl.store(received + j, -of_keys if DIRECTED else of_keys, mask=j < last)
            if RECEIVED_SIZE:
                tl.store(received_size + j, tl.sum(tl.sum(taken_size, axis=0), axis=0), mask=j < last)
