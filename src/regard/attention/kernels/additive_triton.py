"""Additive attention on the GPU, in Triton; with TRITON_INTERPRET=1 on a CPU. See docs/additive_kernel.md.

Energies E_ij = unit · Σ_d w_d tanh(a_id + b_jd), a 64 × 64 tile per program:

    tanh(x + y) = 1 − 2 / (e^{2x} e^{2y} + 1)            w₁/x₁ + w₂/x₂ = (w₁x₂ + w₂x₁) / (x₁x₂)

The exponentials are taken once per row (`_exponentials`), and two terms share one reciprocal: 3 multiply-adds and half
a reciprocal per tanh, where the GPU's own tanh unit gives 16 per clock and SM and this is bound at 32.

Exact at any magnitude: while max|a| + max|b| ≤ LIMIT over a tile's rows and keys, x₁x₂ ≤ e^{4·LIMIT} cannot overflow;
a tile past that takes e^{2(a + b)} of the sum itself, where ∞ gives 1/∞ = 0, the right answer.

They are written a bounded piece of the matrix at a time. A second kernel takes weights and values from them, in one
pass with a running maximum, and in the backward a third turns them into weights and slopes:

    w_ij = e^{E_ij − lse_i}    z_i = Σ_j w_ij v_j    δ_i = grad_i·z_i − dlse_i    ds_ij = w_ij (grad_i·v_j − δ_i)
    da_id = Σ_j ds_ij w_d (1 − t²)     db_jd = Σ_i ds_ij w_d (1 − t²)     dw_d = Σ_ij ds_ij t     t = tanh(a_id + b_jd)

grad_i·z_i = Σ_j w_ij grad_i·v_j with dropout and without it; the log-sum-exp's own gradient enters with w_ij too.
Nothing is kept for the backward but the log-sum-exp. `_contract` runs twice: for da a thread keeps its rows and entries
d and walks along the keys, for db it keeps keys and walks along the rows. So every sum has one owner and one order: no
atomics, and two runs give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from . import ceil
from . import statistics_launch as statistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Int
    from torch import Tensor
    from torch.autograd.function import FunctionCtx

    Spans = Int[Tensor, "n blocks 2"]

BLOCK = 64
"""Rows or keys in one tile, and per entry of the table `spans`."""

WORKSPACE = 1 << 24
"""Energies held at once: 64 MiB, or 4096 tiles, enough for some ten rounds of programs on the 132 SMs of an H200."""

LOG2E = 1.4426950408889634
LN2 = tl.constexpr(0.6931471805599453)

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter runs the same kernels on a CPU, but has no inline assembly."""


@triton.jit
def kept(seed, n, i, j, dropout):
    """The dropout factor of weight (n, i, j), 0 or 1/(1 − dropout): a function of the seed and its place alone."""
    i = i + tl.zeros_like(j)
    word, _, _, _ = tl.philox(seed, j + tl.zeros_like(i), i, n.to(tl.int32), 0)
    return tl.where((word >> 8).to(tl.float32) * 2**-24 < dropout, 0.0, 1 / (1 - dropout))


@triton.jit
def _spans(start, start_n, start_i, stop, stop_n, stop_i, spans, spans_n, q, BLOCK: tl.constexpr):
    n, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    low = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 2**31 - 1)
    high = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)
    tl.store(spans + n * spans_n + 2 * block, tl.min(low).to(tl.int32))
    tl.store(spans + n * spans_n + 2 * block + 1, tl.max(high).to(tl.int32))


@triton.jit
def meets(spans, spans_n, n, row_block, key_block, BLOCK: tl.constexpr):
    """Whether some row of the block of rows may see some key of the block of keys."""
    at = spans + n * spans_n + 2 * row_block
    return (tl.load(at) < (key_block + 1) * BLOCK) & (tl.load(at + 1) > key_block * BLOCK)


def strides(x: Tensor | None) -> tuple[int, ...]:
    return (0, 0) if x is None else x.stride()


def spans_of(start: Int[Tensor, "n q"] | None, stop: Int[Tensor, "n q"] | None) -> Spans | None:
    """The first key and one past the last that some row of each block sees."""
    if start is None or stop is None:
        return None
    n, q = start.shape
    spans = start.new_empty((n, ceil(q, BLOCK), 2), dtype=torch.int32)
    grid = (n, spans.shape[1], 1)
    statistics.start(_spans, grid, start, *start.stride(), stop, *stop.stride(), spans, spans.stride(0), q, BLOCK)
    return spans


def pieces(n: int, q: int, k: int) -> Iterator[tuple[slice, slice]]:
    """Cut n matrices of q × k into pieces of about WORKSPACE numbers: which matrices, which rows."""
    wide = ceil(k, BLOCK) * BLOCK
    tall = min(ceil(q, BLOCK), max(1, WORKSPACE // (wide * BLOCK))) * BLOCK
    deep = max(1, WORKSPACE // (wide * tall))
    for m in range(0, n, deep):
        for i in range(0, q, tall):
            yield slice(m, min(m + deep, n)), slice(i, min(i + tall, q))


def workspace(n: int, q: int, k: int, like: Tensor) -> Float[Tensor, "n q_pad k_pad"]:
    """Room for the energies of the largest piece, whole blocks of them."""
    which, rows = next(pieces(n, q, k))
    shape = (which.stop, ceil(rows.stop, BLOCK) * BLOCK, ceil(k, BLOCK) * BLOCK)
    return like.new_empty(shape, dtype=torch.float32)


def piece_bounds(
    start: Int[Tensor, "n q"] | None, stop: Int[Tensor, "n q"] | None, spans: Spans | None, m: slice, i: slice
) -> tuple[Tensor | None, Tensor | None, Spans | None]:
    """`start`, `stop` and `spans` of a piece."""
    if start is None or stop is None or spans is None:
        return None, None, None
    return start[m, i], stop[m, i], spans[m, i.start // BLOCK : ceil(i.stop, BLOCK)]


@triton.jit
def _average(
    e, e_n, e_i, v, v_n, v_j, v_d, start, start_n, start_i, stop, stop_n, stop_i, spans, spans_n, seed,
    out, out_n, out_i, state, state_n, q, k, width, n0, i0, dropout,
    INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    part, row_block, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = row_block * ROWS + tl.arange(0, ROWS)
    at = part * WIDE + tl.arange(0, WIDE)
    low = 0
    high = k
    if INTERVAL:
        first = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 0)[:, None]
        last = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)[:, None]
        span = spans + n * spans_n + 2 * (row_block * ROWS // BLOCK)
        low = tl.load(span) // BLOCK * BLOCK
        high = tl.minimum(tl.load(span + 1), k)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDE], tl.float32)
    for block in range(low, high, BLOCK):
        j = block + tl.arange(0, BLOCK)
        here = tl.load(e + n * e_n + i[:, None] * e_i + j[None, :])  # [ROWS, BLOCK]
        seen = (j < k)[None, :]
        if INTERVAL:
            seen = (j[None, :] >= first) & (j[None, :] < tl.minimum(last, k))
        here = tl.where(seen, here, float("-inf"))
        above = tl.maximum(top, tl.max(here, 1))
        anchor = tl.where(above == float("-inf"), 0.0, above)  # nothing seen yet: −∞ − 0 rather than −∞ + ∞
        p, shrunk, top = tl.exp2(here - anchor[:, None]), tl.exp2(top - anchor), above
        total = total * shrunk + tl.sum(p, 1)
        if DROPOUT:
            p *= kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        values = v + n * v_n + j.to(tl.int64)[:, None] * v_j + at[None, :] * v_d
        values = tl.load(values, (j < high)[:, None] & (at < width)[None, :], 0.0)  # [BLOCK, WIDE]
        if not COMPILED:
            values = values.to(tl.float32)  # the interpreter multiplies bfloat16 as the integers it stores them in
        # Three tensor-core products carry float32's digits; a single one keeps 11 bits.
        sums = tl.dot(p.to(values.dtype), values, sums * shrunk[:, None], input_precision="tf32x3")
    empty = total == 0  # not so where there is a NaN
    out += n * out_n + i.to(tl.int64)[:, None] * out_i + at[None, :]
    result = sums / tl.where(empty, 1.0, total)[:, None]
    tl.store(out, result.to(out.dtype.element_ty), (i < q)[:, None] & (at < width)[None, :])
    row_state = tl.where(empty, float("inf"), (top + tl.log2(total)) * LN2)
    tl.store(state + n * state_n + i, row_state, (i < q) & (part == 0))


@triton.jit
def _slopes(
    e, dp, e_n, e_i, delta, state, row_n, start, start_n, start_i, stop, stop_n, stop_i, seed, q, k, n0, i0, scale,
    dropout, INTERVAL: tl.constexpr, DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place: energies become w_ij with dropout, dp_ij becomes ds_ij; both 0 where row i does not see key j."""
    n = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = (i < q)[:, None] & (j < k)[None, :]
    if INTERVAL:
        first = tl.load(start + n * start_n + i.to(tl.int64) * start_i, i < q, 0)[:, None]
        last = tl.load(stop + n * stop_n + i.to(tl.int64) * stop_i, i < q, 0)[:, None]
        seen = seen & (j[None, :] >= first) & (j[None, :] < last)
    row = n * row_n + i
    lse = tl.load(state + row, i < q, 1.0)[:, None]
    at = n * e_n + i[:, None] * e_i + j[None, :]
    energy = tl.load(e + at, seen, 0.0)  # [BLOCK, BLOCK]
    p = tl.where(seen, tl.exp2(energy - lse), 0.0)
    slope = tl.load(dp + at, seen, 0.0)
    weight = p
    if DROPOUT:
        factor = kept(tl.load(seed), n0 + n, i0 + i[:, None], j[None, :], dropout)
        weight = p * factor
        slope = slope * factor
    slope = p * (slope - tl.load(delta + row, i < q, 0.0)[:, None]) * scale
    tl.store(e + at, weight)
    tl.store(dp + at, tl.where(seen, slope, 0.0))


GROUP = 16
"""Terms summed before they join the total: the sum of w r drifts to Σw/2 and would lose digits if carried along."""

LIMIT = tl.constexpr(21.5)
"""(e^{2·21.5} + 1)² = 2e37 is a float32 whose reciprocal is a float32 too."""

TWICE_LOG2E = tl.constexpr(2 * LOG2E)


@triton.jit
def reciprocal(x):
    """1/x in one instruction, right to the last bit but one; `/` would spend eight on huge and tiny x."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def shrink(s):
    """r = 1 / (e^{2s} + 1), so that tanh(s) = 1 − 2r and its derivative is 4 r (1 − r)."""
    return reciprocal(tl.exp2(s * TWICE_LOG2E) + 1)


@triton.jit
def _exponential(x):
    """e^{2x} to the last bit or so, for |x| ≤ LIMIT: tl.exp would be 20 times less exact at x = 10.

    e^{2x} = 2^m e^r with m whole and |r| ≤ ln 2 / 2; ln 2 in two parts, the first short enough that m·part is exact.
    """
    m = tl.floor(x * TWICE_LOG2E + 0.5)
    r = (2 * x - m * 0.693145751953125) - m * 1.42860677e-06
    p = 1 / 720 + r * (1 / 5040)
    p = 1 / 24 + r * (1 / 120 + r * p)
    p = 1 + r * (1 + r * (1 / 2 + r * (1 / 6 + r * p)))
    return p * tl.exp2(m)


@triton.jit
def _exponentials(x, x_n, x_t, x_d, out, out_n, out_t, out_d, bound, bound_n, t, d, d_pad, BLOCK: tl.constexpr):
    n, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for first in range(0, d_pad, 64):
        cols = first + tl.arange(0, 64)
        inside = (rows < t)[:, None] & (cols < d)[None, :]
        at = rows.to(tl.int64)[:, None] * x_t + cols[None, :] * x_d
        here = tl.load(x + n * x_n + at, inside, 0.0).to(tl.float32)  # [BLOCK, 64]
        largest = tl.maximum(largest, tl.max(tl.abs(here), 1))
        at = rows.to(tl.int64)[:, None] * out_t + cols.to(tl.int64)[None, :] * out_d
        # Zero past the end: e^{2x}·0 + 1 = 1, which the zero in w there multiplies.
        tl.store(out + n * out_n + at, tl.where(inside, _exponential(here), 0.0), (cols < d_pad)[None, :])
    tl.store(bound + n * bound_n + block, tl.max(largest))


@triton.jit
def _shared(u, u_d, v, v_d, w, i, j, d_pad, GROUP: tl.constexpr):
    """Σ_d w_d (r_d − ½) from the exponentials u and v, one reciprocal for two terms."""
    total = tl.zeros([j.shape[0], i.shape[0], j.shape[1]], tl.float32)
    for first in range(0, d_pad, GROUP):
        centre = 0.0
        for g in tl.static_range(GROUP):
            centre -= 0.5 * tl.load(w + first + g)
        group = tl.zeros_like(total) + centre
        for g in tl.static_range(0, GROUP, 2):
            at = first + g
            w1, w2 = tl.load(w + at), tl.load(w + at + 1)
            x1 = tl.load(u + at * u_d + i)[None, :, None] * tl.load(v + at * v_d + j)[:, None, :] + 1
            x2 = tl.load(u + (at + 1) * u_d + i)[None, :, None] * tl.load(v + (at + 1) * v_d + j)[:, None, :] + 1
            group += (w1 * x2 + w2 * x1) * reciprocal(x1 * x2)
        total += group
    return total


@triton.jit
def _direct(a, a_t, a_d, b, b_t, b_d, w, i, j, q, k, d):
    """The same sum from a and b themselves."""
    total = tl.zeros([j.shape[0], i.shape[0], j.shape[1]], tl.float32)
    for at in range(d):
        x = tl.load(a + i.to(tl.int64) * a_t + at * a_d, i < q, 0.0).to(tl.float32)
        y = tl.load(b + j.to(tl.int64) * b_t + at * b_d, j < k, 0.0).to(tl.float32)
        total += tl.load(w + at) * (shrink(x[None, :, None] + y[:, None, :]) - 0.5)
    return total


@triton.jit
def _energies(
    a, a_n, a_t, a_d, b, b_n, b_t, b_d, w,
    u, u_n, u_d, v, v_n, v_d, bound_a, bound_a_n, bound_b, bound_b_n,
    spans, spans_n, e, e_n, e_i, q, k, d, d_pad, unit,
    SPANS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    key_block, row_block, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if SPANS and not meets(spans, spans_n, n, row_block, key_block, BLOCK):
        return
    # The keys in four parts, [4, rows, keys / 4]: Triton spreads the last dimension over the lanes and keeps the first
    # in each thread, which then has 8 rows × 4 keys and loads 12 numbers for 32 tanh. As [rows, keys] it would be 33.
    i = row_block * BLOCK + tl.arange(0, BLOCK)
    j = key_block * BLOCK + tl.arange(0, 4)[:, None] * (BLOCK // 4) + tl.arange(0, BLOCK // 4)[None, :]
    e += n * e_n + i[None, :, None] * e_i + j[:, None, :]
    largest = tl.load(bound_a + n * bound_a_n + row_block) + tl.load(bound_b + n * bound_b_n + key_block)
    if largest <= LIMIT:
        tl.store(e, _shared(u + n * u_n, u_d, v + n * v_n, v_d, w, i, j, d_pad, GROUP) * unit)
    else:
        tl.store(e, _direct(a + n * a_n, a_t, a_d, b + n * b_n, b_t, b_d, w, i, j, q, k, d) * unit)


class _Side(NamedTuple):
    """One side of the identity: the rows themselves, their exponentials, and how large each block's entries are."""

    rows: Float[Tensor, "n t d"]
    exponentials: Float[Tensor, "n t_pad d_pad"]
    bound: Float[Tensor, "n blocks"]

    def part(self, n: slice, rows: slice) -> _Side:
        """Some matrices and rows of it; `rows` starts at a block's edge."""
        padded = slice(rows.start, ceil(rows.stop, BLOCK) * BLOCK)
        blocks = slice(rows.start // BLOCK, ceil(rows.stop, BLOCK))
        return _Side(self.rows[n, rows], self.exponentials[n, padded], self.bound[n, blocks])


def _side(x: Float[Tensor, "n t d"], transposed: bool) -> _Side:
    """e^{2x}, zero past the end; in memory as [n, d, t] for `_energies`, whose threads lie along rows and keys."""
    n, t, d = x.shape
    blocks, wide = ceil(t, BLOCK), ceil(d, GROUP) * GROUP
    out = x.new_empty((n, wide, blocks * BLOCK) if transposed else (n, blocks * BLOCK, wide), dtype=torch.float32)
    out = out.mT if transposed else out
    bound = x.new_empty((n, blocks), dtype=torch.float32)
    statistics.start(
        _exponentials, (n, blocks, 1), x, *x.stride(), out, *out.stride(), bound, blocks, t, d, wide, BLOCK
    )
    return _Side(x, out, bound)


def _padded(w: Float[Tensor, " d"]) -> Float[Tensor, " d_pad"]:
    more = -w.shape[0] % GROUP
    return pad(w.float(), (0, more)) if more else w.float().contiguous()


def _write_energies(
    a: _Side, b: _Side, w: Float[Tensor, " d_pad"], spans: Spans | None, scale: float, out: Tensor
) -> None:
    """log₂e · scale · w·tanh(a_i + b_j) into `out` [n, q_pad, k_pad]; blocks that no row sees stay unwritten."""
    n, q, d = a.rows.shape
    k = b.rows.shape[1]
    u, v = a.exponentials, b.exponentials
    statistics.start(
        _energies, (b.bound.shape[1], a.bound.shape[1], n), a.rows, *a.rows.stride(), b.rows, *b.rows.stride(), w,
        u, u.stride(0), u.stride(2), v, v.stride(0), v.stride(2), a.bound, a.bound.stride(0), b.bound,
        b.bound.stride(0), spans, 0 if spans is None else spans.stride(0), out, out.stride(0), out.stride(1),
        q, k, d, w.shape[0], -2 * scale * LOG2E, spans is not None, BLOCK, GROUP, num_warps=4,
    )  # fmt: skip


def pairwise(a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"], w: Float[Tensor, " d"]) -> Float[Tensor, "n q k"]:
    """w·tanh(a_i + b_j) for all i, j: a block of the matrix, for questions about its weights."""
    left, right = _side(a, True), _side(b, True)
    out = left.bound.new_empty(a.shape[0], *(BLOCK * x.bound.shape[1] for x in (left, right)))
    _write_energies(left, right, _padded(w), None, 1 / LOG2E, out)
    return out[:, : a.shape[1], : b.shape[1]]


def forward(
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    start: Int[Tensor, "_ _"] | None,
    stop: Int[Tensor, "_ _"] | None,
    seed: Int[Tensor, ""] | None,
    scale: float,
    dropout: float,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output and row state: the log-sum-exp, +∞ for a row that sees no key."""
    q, (n, k, width) = a.shape[1], v.shape
    start, stop = (None if x is None else x.expand(n, q) for x in (start, stop))
    left, right, weight = _side(a, True), _side(b, True), _padded(w)
    out, state = v.new_empty((n, q, width)), v.new_empty((n, q), dtype=torch.float32)
    spans, room = spans_of(start, stop), workspace(n, q, k, v)
    wide = min(128, max(16, 1 << (width - 1).bit_length()))
    tall, stages = (BLOCK // 2, 2) if v.dtype == torch.float32 else (BLOCK, 3)
    for m, i in pieces(n, q, k):
        e, rows = room[: m.stop - m.start], i.stop - i.start
        first, last, span = piece_bounds(start, stop, spans, m, i)
        _write_energies(left.part(m, i), right.part(m, slice(0, k)), weight, span, scale, e)
        statistics.start(
            _average, (ceil(width, wide), ceil(rows, tall), e.shape[0]),
            e, *e.stride()[:2], v[m], *v.stride(), first, *strides(first), last, *strides(last), span,
            0 if span is None else span.stride(0), seed, out[m, i], *out.stride()[:2], state[m, i], state.stride(0),
            rows, k, width, m.start, i.start, dropout,
            start is not None, dropout > 0, BLOCK, tall, wide, num_warps=4, num_stages=stages,
        )  # fmt: skip
    return out, state


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
    start: Int[Tensor, "_ _"] | None,
    stop: Int[Tensor, "_ _"] | None,
    seed: Int[Tensor, ""] | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w and v, each in its tensor's dtype. No gradient of the log-sum-exp is one of zeros."""
    n, q, k = *lse.shape, v.shape[1]
    start, stop = (None if x is None else x.expand(n, q) for x in (start, stop))
    da, db, dw = (torch.zeros_like(x, dtype=torch.float32, memory_format=torch.contiguous_format) for x in (a, b, w))
    across, along = (_side(a, True), _side(b, True)), (_side(a, False), _side(b, False))
    weight, keys = _padded(w), slice(0, k)
    spans, grad, values = spans_of(start, stop), grad.float(), v.float()
    dv = torch.zeros_like(values, memory_format=torch.contiguous_format)
    delta = (grad * out.float()).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse
    lse = lse.contiguous() * LOG2E
    room, slopes = workspace(n, q, k, values), workspace(n, q, k, values)
    for m, i in pieces(n, q, k):
        e, ds, rows = room[: m.stop - m.start], slopes[: m.stop - m.start], i.stop - i.start
        first, last, span = piece_bounds(start, stop, spans, m, i)
        _write_energies(across[0].part(m, i), across[1].part(m, keys), weight, span, scale, e)
        torch.bmm(grad[m, i], values[m].mT, out=ds[:, :rows, :k])
        statistics.start(
            _slopes, (ceil(k, BLOCK), ceil(rows, BLOCK), e.shape[0]), e, ds, *e.stride()[:2],
            delta[m, i], lse[m, i], delta.stride(0), first, *strides(first), last, *strides(last),
            seed, rows, k, m.start, i.start, scale, dropout, start is not None, dropout > 0, BLOCK, num_warps=4,
        )  # fmt: skip
        dv[m].baddbmm_(e[:, :rows, :k].mT, grad[m, i])
        left, right = along[0].part(m, i), along[1].part(m, keys)
        dw.add_(_contracted(left, right, weight, ds, span, da[m, i], keys=False))
        _contracted(right, left, weight, ds, span, db[m], keys=True)
    return tuple(g.to(x.dtype) for g, x in zip((da, db, dw, dv), (a, b, w, v), strict=True))  # type: ignore[return-value]


def _contracted(
    own: _Side, other: _Side, w: Tensor, ds: Tensor, spans: Spans | None, out: Tensor, keys: bool
) -> Float[Tensor, " d"]:
    """Add this piece's part of da (or, for keys, db) to `out`, and return its part of dw (zeros for keys)."""
    n, count, d = own.rows.shape
    rows, registers = (BLOCK // 2, 128) if keys else (BLOCK, 255)  # as measured on an H200
    grid = (ceil(d, 64), ceil(count, rows), n)
    dw = out.new_empty((0 if keys else n, grid[1], d))
    ds_own, ds_other = (ds.stride(2), ds.stride(1)) if keys else (ds.stride(1), ds.stride(2))
    statistics.start(
        _contract, grid,
        own.rows, *own.rows.stride(), other.rows, *other.rows.stride(), own.exponentials,
        *own.exponentials.stride()[:2], other.exponentials, *other.exponentials.stride()[:2], w,
        own.bound, own.bound.stride(0), other.bound, other.bound.stride(0),
        spans, 0 if spans is None else spans.stride(0), ds, ds.stride(0), ds_own, ds_other,
        out, *out.stride()[:2], dw, dw.stride(0), count, other.rows.shape[1], d,
        spans is not None, keys, BLOCK, rows, num_warps=4, maxnreg=registers,
    )  # fmt: skip
    return dw.sum((0, 1))


_OPTIONS = "Tensor? start, Tensor? stop, Tensor? seed, float scale, float dropout"
additive = torch.library.custom_op(
    "regard::additive",
    forward,
    mutates_args=(),
    device_types="cuda",
    schema=f"(Tensor a, Tensor b, Tensor w, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
)
"""a [n, q, d], b [n, k, d], w [d], v [n, k, d_v] → output [n, q, d_v] and log-sum-exp [n, q].

Query i sees keys start_i ≤ j < stop_i ([n or 1, q or 1], both or neither). Dropout repeats with its seed.
"""
additive_backward = torch.library.custom_op(
    "regard::additive_backward",
    backward,
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor grad, Tensor grad_lse, Tensor a, Tensor b, Tensor w, Tensor v, Tensor out, Tensor lse, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@additive.register_fake
def _(a: Tensor, b: Tensor, w: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(a.shape[0], a.shape[1], v.shape[2]), a.new_empty(a.shape[:2], dtype=torch.float32)


@additive_backward.register_fake
def _(grad: Tensor, grad_lse: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b, w, v = (x.new_empty(x.shape) for x in inputs[:4])
    return a, b, w, v


def _setup(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, scale, dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.scale, ctx.dropout = scale, dropout  # type: ignore[attr-defined]


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    a, b, w, v, start, stop, seed, out, lse = ctx.saved_tensors
    gradients = additive_backward(grad, grad_lse, a, b, w, v, out, lse, start, stop, seed, ctx.scale, ctx.dropout)
    return (*gradients, *[None] * 5)


additive.register_autograd(_gradients, setup_context=_setup)


# One query for each sentence (`kernels/additive_steps.py`), in float32 whatever the inputs are: one launch forward, one
# backward, which computes the tanh again


@triton.jit
def tanh(x):
    # 1 − 2/(e^{2x} + 1): exact at both ends, e^{2x} = ∞ gives 1 and 0 gives −1.
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _step_energies(q, keys, w, e, places, room, width, WIDTH: tl.constexpr, PLACES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    d = tl.arange(0, WIDTH)
    here = tl.load(q + row * width + d, d < width, 0.0).to(tl.float32)
    weight = tl.load(w + d, d < width, 0.0).to(tl.float32)
    at = (row * room + j)[:, None] * width + d
    key = tl.load(keys + at, (j < places)[:, None] & (d < width), 0.0).to(tl.float32)
    tl.store(e + row * places + j, tl.sum(tanh(here + key) * weight, axis=1), j < places)


@triton.jit
def _step_gradients(
    g, q, keys, w, to_q, sum_keys, to_w, places, room, width, WIDTH: tl.constexpr, PLACES: tl.constexpr
):
    # One program per sentence: no other adds to its sums, so the order of additions is fixed.
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = tl.load(q + row * width + d, d < width, 0.0).to(tl.float32)
    weight = tl.load(w + d, d < width, 0.0).to(tl.float32)
    into_q = tl.zeros([WIDTH], dtype=tl.float32)
    into_w = tl.zeros([WIDTH], dtype=tl.float32)
    for first in range(0, places, PLACES):
        j = first + tl.arange(0, PLACES)
        inside = (j < places)[:, None] & (d < width)
        at = (row * room + j)[:, None] * width + d
        grad = tl.load(g + row * places + j, j < places, 0.0).to(tl.float32)[:, None]
        hidden = tanh(here + tl.load(keys + at, inside, 0.0).to(tl.float32))
        into = grad * (1 - hidden * hidden)
        into_q += tl.sum(into, axis=0)
        into_w += tl.sum(grad * hidden, axis=0)
        tl.store(sum_keys + at, tl.load(sum_keys + at, inside, 0.0) + into, inside)
    tl.store(to_q + row * width + d, into_q * weight, d < width)
    tl.store(to_w + row * width + d, into_w, d < width)


def step_energies(q: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """q [batch, d], keys [batch, places, d] → [batch, places], float32."""
    q, weight = q.contiguous(), weight.contiguous()
    keys, room = _room(keys)
    batch, places, width = keys.shape
    e = torch.empty(batch, places, dtype=torch.float32, device=q.device)
    block = triton.next_power_of_2(width)
    rows = max(1, 4096 // block)
    _step_energies[(batch, triton.cdiv(places, rows))](
        q, keys, weight, e, places, room, width, WIDTH=block, PLACES=rows
    )
    return e


def add_gradients(g: Tensor, q: Tensor, keys: Tensor, weight: Tensor, sum_keys: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of q and w. Adds to `sum_keys`, which lacks the factor w.

    `sum_keys` has the keys' strides: both whole, or both the first places of a larger buffer.
    """
    g, q, weight = g.contiguous(), q.contiguous(), weight.contiguous()
    keys, room = _room(keys)
    if sum_keys.stride() != keys.stride():
        raise ValueError(f"the sums have strides {sum_keys.stride()} and the keys {keys.stride()}; they must be equal")
    batch, places, width = keys.shape
    to_q = torch.empty_like(q)
    to_w = torch.empty(batch, width, dtype=torch.float32, device=q.device)
    block = min(128, triton.next_power_of_2(width))
    _step_gradients[(batch, triton.cdiv(width, block))](
        g, q, keys, weight, to_q, sum_keys, to_w, places, room, width, WIDTH=block, PLACES=16
    )
    return to_q, to_w.sum(0).to(weight.dtype)


def _room(keys: Tensor) -> tuple[Tensor, int]:
    """Keys without gaps inside a sentence, and the distance from one sentence to the next, in keys."""
    width = keys.shape[-1]
    if keys.stride(2) != 1 or keys.stride(1) != width or keys.stride(0) % width:
        keys = keys.contiguous()
    return keys, keys.stride(0) // width
