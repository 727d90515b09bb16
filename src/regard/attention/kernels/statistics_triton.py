"""Statistics of weights and contributions on a GPU: the kernels, given the row state.

`walk` answers what the whole attention matrix decides. A program owns some blocks of keys (its strip) and walks over
queries with each of them. Everything then lies where it is cheap: the sums over queries (`received`) stay in registers
until a block of keys is done, the sums over the keys of one block are a reduction inside a thread and two shuffles.
What a row gets from one program goes to that program's own slot [n, strip, q], added up afterwards: no two programs
write to one place, so the order never changes, and what is there is read before the products, which hide the wait.
Maxima are joined by integer atomics, whose result no order changes.

With DIRECTED the same is asked of contributions C_ij = w_ij (g_i · v_j) instead of weights: a second product, signs,
and sums of sizes beside sums.

In the others (`row_state`, `single_weights`, `fidelity`, `top`) a program owns a block of queries and looks at the keys
they see. For the k largest of a row a block of keys is searched only as often as some row finds in it a number above
the least of its best so far. What is compared is the energy of a weight, whose order is that of the weights of a row,
and of a contribution `size_code`.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Triton has no types, and its functions take tensors and compile-time constants alike: nothing for mypy to check.
# mypy: ignore-errors


LENGTHS = [
    "queries", "keys", "bound_n", "range_n", "chosen_n", "blocks", "turns",
    "map_rows", "map_cols", "count",
]  # fmt: skip
"""Arguments that change with a sequence's length. Triton would compile a kernel anew for 1 and for multiples of 16."""
ADDRESSES = [
    "q_at", "k_at", "state", "place", "slopes", "start", "stop", "edges", "ranges", "row_cells",
    "col_cells", "chosen", "entropy", "on", "sums", "received", "received_size", "best", "cells", "shifts", "values",
    "indices", "z_at", "v_at", "g_at", "error", "norm",
]  # fmt: skip
"""Tensors whose alignment no kernel uses, and which may begin anywhere."""


@triton.jit
def tanh(y):
    """1 − 2 / (e^{2y} + 1), and the power series near 0, where that difference would cancel."""
    square = y * y
    series = y * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    return tl.where(tl.abs(y) < 0.3, series, 1 - 2 / (tl.exp2(y * 2.8853900817779268) + 1))


@triton.jit
def energies(s, i, j, scale, cap, slope, CAP: tl.constexpr, ALIBI: tl.constexpr):
    """What the modifiers make of dot products; without any the dot products, since `weigh` scales.

    `i` and `j` are positions in the model.
    """
    if CAP or ALIBI:
        s = s * scale
    if CAP:
        s = cap * tanh(s / cap)
    if ALIBI:
        s = s - slope * tl.abs(i - j).to(tl.float32)
    return s


@triton.jit
def weigh(e, state, c):
    """w from energies and row state, which the host prepares (`_states`)."""
    return tl.exp2(e * c - state)


@triton.jit
def size_code(x):
    """Whole numbers in the order of |x|, of two with one size the positive last: the bits of x, its sign the lowest."""
    bits = x.to(tl.uint32, bitcast=True)
    return ((bits << 1) | (bits >> 31)).to(tl.int32, bitcast=True) ^ -0x7FFFFFFF


@triton.jit
def number_of_code(code):
    """The x of `size_code(x)`."""
    bits = (code ^ -0x7FFFFFFF).to(tl.uint32, bitcast=True)
    return ((bits >> 1) | (bits << 31)).to(tl.float32, bitcast=True)


@triton.jit
def ordered(x):
    """Whole numbers in the order of these floats, and back: a function that is its own inverse."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def log2(x, PTX: tl.constexpr):
    """log₂ x of a normal number. The compiler's own takes some twenty instructions, the GPU's one."""
    if PTX:
        log = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        log = tl.log2(x)
    return log


@triton.jit
def contribution(w, product, FINITE: tl.constexpr):
    """C = w · (g · v). A key of weight 0 contributes 0, also if its value is NaN or ∞, as padding may be."""
    x = w * product
    if not FINITE:
        x = tl.where(w == 0, 0.0, x)
    return x


@triton.jit
def matrix(ptr, at, i, row, count, D: tl.constexpr, BD: tl.constexpr, ALIGN: tl.constexpr):
    """Rows i of one matrix [count, D] that begins at · ALIGN numbers into `ptr`, zeros beyond its ends: [rows, BD].

    The product tells the compiler how far it may trust the address, and so how wide it may read.
    """
    d = tl.arange(0, BD)
    here = ptr + at * ALIGN + i.to(tl.int64)[:, None] * row + d[None, :]
    if BD == D:
        return tl.load(here, mask=(i < count)[:, None], other=0.0)
    return tl.load(here, mask=(i < count)[:, None] & (d < D)[None, :], other=0.0)


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
    chosen, entropy, on, sums, received, received_size, best, cells, queries, keys, q_row, k_row, g_row, v_row,
    bound_n, range_n, chosen_n, blocks, turns, map_rows, map_cols, scale, c, cap,
    CAP: tl.constexpr, ALIBI: tl.constexpr, BOUNDED: tl.constexpr, DIRECTED: tl.constexpr, FINITE: tl.constexpr,
    ENTROPY: tl.constexpr, ON: tl.constexpr,
    SUMS: tl.constexpr, SIZES: tl.constexpr, RECEIVED: tl.constexpr, RECEIVED_SIZE: tl.constexpr,
    BEST: tl.constexpr, MAP: tl.constexpr, SPLIT: tl.constexpr, ROW_GROUP: tl.constexpr, COL_GROUP: tl.constexpr,
    PRECISION: tl.constexpr, PRODUCT_PRECISION: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SLABS: tl.constexpr,
    ALIGN: tl.constexpr, PRODUCT_ALIGN: tl.constexpr, BULK: tl.constexpr, PTX: tl.constexpr,
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
    if BULK:  # blocks of queries by the copy engine: one thread asks, none computes addresses
        all_q = tl.make_tensor_descriptor(
            q + from_q * ALIGN, shape=[queries, D], strides=[q_row.to(tl.int64), 1], block_shape=[BM, BD]
        )
    if DIRECTED:
        from_g, from_v = tl.load(g_at + n), tl.load(v_at + n)
    if DIRECTED and BULK:
        all_g = tl.make_tensor_descriptor(
            g + from_g * PRODUCT_ALIGN, shape=[queries, DV], strides=[g_row.to(tl.int64), 1], block_shape=[BM, BDV]
        )
    best += n.to(tl.int64) * queries
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
                    if BULK:  # noqa: SIM108 (a compile-time choice)
                        q_tile = all_q.load([rows * BM, 0])
                    else:
                        q_tile = matrix(q, from_q, i, q_row, queries, D, BD, ALIGN)
                    s = tl.dot(q_tile, keys_t, input_precision=PRECISION)
                    where = tl.load(place + i, mask=real, other=0)[:, None] if ALIBI else 0
                    e = energies(s, where, j[None, :], scale, cap, slope, CAP, ALIBI)
                    if not whole:
                        seen = (j < last)[None, :]
                        if BOUNDED:
                            low = tl.load(start + i, mask=real, other=0)[:, None]
                            high = tl.load(stop + i, mask=real, other=0)[:, None]
                            seen = seen & (j[None, :] >= low) & (j[None, :] < high)
                        e = tl.where(seen, e, float("-inf"))
                    shown = e
                    if DIRECTED:
                        if BULK:
                            g_tile = all_g.load([rows * BM, 0])
                        else:
                            g_tile = matrix(g, from_g, i, g_row, queries, DV, BDV, PRODUCT_ALIGN)
                        product = tl.dot(g_tile, values_t, input_precision=PRODUCT_PRECISION)
                        w = weigh(e, own_state[:, None], c)
                        x = contribution(w, product, FINITE)
                        if MAP:
                            shown = map_code(x)
                    if BEST:
                        most = tl.max(e, axis=1)
                        # Of equal energies the first key.
                        where_most = tl.min(tl.where(e == most[:, None], j[None, :], 0x7FFFFFFF), axis=1)
                        packed = (ordered(most).to(tl.int64) << 32) | (0x7FFFFFFF - where_most).to(tl.int64)
                        tl.atomic_max(best + i, packed, mask=real, sem="relaxed")
                    if MAP:
                        if SPLIT:
                            right = group_max(tl.where(beyond, shown, none), BM, BN, COL_GROUP, QUADS)
                            join_cells(
                                pooled(right, own_state[:, None], c, DIRECTED),
                                col + 1, col_exists & (col + 1 < map_cols), row_cells, rows * BM, queries, cells,
                                map_cols, BM, ROW_GROUP, SPLIT,
                            )  # fmt: skip
                            left = group_max(tl.where(beyond, none, shown), BM, BN, COL_GROUP, QUADS)
                        else:
                            left = group_max(shown, BM, BN, COL_GROUP, QUADS)  # [BM, groups]
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
                            logs = tl.sum(size * log2(size + 2e-38, PTX), axis=1)
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


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=ADDRESSES)
def best_keys(best, state, values, indices, count, c, BLOCK: tl.constexpr):
    """What `walk` left in `best`, taken apart: the weight of the best key of each row, and which it is."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    packed = tl.load(best + row, mask=row < count, other=0)
    most = ordered((packed >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    own_state = tl.load(state + row, mask=row < count, other=0.0)
    key = 0x7FFFFFFF - (packed & 0x7FFFFFFF)
    # A row that sees no key: the first, with a weight of 0. A row with NaN has NaN, at any key.
    some = (most > float("-inf")) & (key != 0x7FFFFFFF)
    w = tl.where(some | (own_state != own_state), weigh(most, own_state, c), 0.0)
    tl.store(values + row, w, mask=row < count)
    tl.store(indices + row, tl.where(some, key, 0), mask=row < count)


@triton.jit
def block_of(
    q_tile, k, from_k, k_row, keys, i_place, j, low, high, scale, cap, slope,
    CAP: tl.constexpr, ALIBI: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Energies of a block of queries and the keys j, −∞ where a query does not see a key: [BM, BN]."""
    k_tile = matrix(k, from_k, j, k_row, keys, D, BD, ALIGN)
    s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
    e = energies(s, i_place[:, None], j[None, :], scale, cap, slope, CAP, ALIBI)
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
    q, k, q_at, k_at, place, slopes, start, stop, state, queries, keys, q_row, k_row, bound_n, scale, c, cap,
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
        e = energies(s, i_place[:, None], j[None, :], scale, cap, slope, CAP, ALIBI)
        most, total = add_to_state(e, most, total, c)
    # Before and after these are blocks of which rows see a part.
    for step in range(0, until - since - (end - begin), BN):
        at = since + step + tl.where(since + step < begin, 0, end - begin)
        e = block_of(
            q_tile, k, from_k, k_row, keys, i_place, at + tl.arange(0, BN), low, high, scale, cap, slope,
            CAP, ALIBI, PRECISION, D, BD, ALIGN,
        )  # fmt: skip
        most, total = add_to_state(e, most, total, c)
    empty = (most == float("-inf")) | (high <= low)
    tl.store(state + n * queries + i, tl.where(empty, float("inf"), most * c + tl.log2(total)), mask=real)


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def single_weights(
    q, k, q_at, k_at, state, place, slopes, start, stop, shifts, values, queries, keys,
    q_row, k_row, bound_n, scale, c, cap, count,
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
        j = i_place + tl.load(shifts + at)
        seen = real & (j >= low) & (j < high) & (j >= 0) & (j < keys)
        s = tl.sum(
            q_tile * matrix(k, from_k, tl.where(seen, j, keys), k_row, keys, D, BD, ALIGN).to(tl.float32), axis=1
        )
        w = weigh(energies(s, i_place, j, scale, cap, slope, CAP, ALIBI), own_state, c)
        tl.store(values + row * count + at, tl.where(seen, w, 0.0), mask=real)


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=ADDRESSES)
def fidelity(
    q, k, v, z, q_at, k_at, v_at, z_at, state, place, slopes, start, stop, error, norm, queries, keys, q_row,
    k_row, v_row, z_row, bound_n, scale, c, cap,
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
            q_tile, k, from_k, k_row, keys, i_place, j, low, high, scale, cap, slope,
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


@triton.jit
def scores(
    q_tile, g_tile, k, v, from_k, from_v, k_row, v_row, keys, i_place, j, low, high, state, scale, c, cap,
    slope,
    MASKED: tl.constexpr, DIRECTED: tl.constexpr, FINITE: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
    PRECISION: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, ALIGN: tl.constexpr, PRODUCT_ALIGN: tl.constexpr,
):  # fmt: skip
    """What is compared, of a block of queries and the keys j: [BM, BN]. With MASKED the least where a key is hidden."""
    s = tl.dot(q_tile, tl.trans(matrix(k, from_k, j, k_row, keys, D, BD, ALIGN)), input_precision=PRECISION)
    score = energies(s, i_place[:, None], j[None, :], scale, cap, slope, CAP, ALIBI)
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
    keys, q_row, k_row, g_row, v_row, bound_n, scale, c, cap, count,
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
            own_state, scale, c, cap, slope, False, DIRECTED, FINITE, CAP,
            ALIBI, PRECISION, D, BD, DV, BDV, ALIGN, PRODUCT_ALIGN,
        )  # fmt: skip
        kept, keys_kept, reached = keep_best(score, at, kept, keys_kept, reached, none, BN, SLOTS)
    # Before and after these are blocks of which rows see a part.
    for step in range(0, until - since - (end - begin), BN):
        at = since + step + tl.where(since + step < begin, 0, end - begin)
        score = scores(
            q_tile, g_tile, k, v, from_k, from_v, k_row, v_row, keys, i_place, at + tl.arange(0, BN), low, high,
            own_state, scale, c, cap, slope, True, DIRECTED, FINITE, CAP,
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
