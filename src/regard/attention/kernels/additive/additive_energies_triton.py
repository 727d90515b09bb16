"""Energies on the GPU: E_ij = unit · Σ_d w_d tanh(a_id + b_jd), a 64 × 64 tile per program.

    tanh(x + y) = 1 − 2 / (e^{2x} e^{2y} + 1)            w₁/x₁ + w₂/x₂ = (w₁x₂ + w₂x₁) / (x₁x₂)

The exponentials are taken once per row (`exponentials`), and two terms share one reciprocal: 3 multiply-adds and half a
reciprocal per tanh, where the GPU's own tanh unit gives 16 per clock and SM and this is bound at 32.

Exact at any magnitude: while max|a| + max|b| ≤ LIMIT over a tile's rows and keys, x₁x₂ ≤ e^{4·LIMIT} cannot overflow;
a tile past that takes e^{2(a + b)} of the sum itself, where ∞ gives 1/∞ = 0, the right answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from .. import ceil, fast_triton_launch
from ..matrix_pieces_triton import BLOCK, COMPILED, LOG2E, meets

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..matrix_pieces_triton import Spans

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
def add_parts(parts, out, count, d, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Sums over the parts [count, d], in one order, COLS of them to a program: PyTorch's own sum starts too few."""
    at = tl.program_id(0) * COLS + tl.arange(0, COLS)
    sums = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        here = parts + row.to(tl.int64)[:, None] * d + at[None, :]
        sums += tl.load(here, (row < count)[:, None] & (at < d)[None, :], 0.0)
    tl.store(out + at, tl.sum(sums, 0).to(out.dtype.element_ty), at < d)


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


class Side(NamedTuple):
    """One side of the identity: the rows themselves, their exponentials, and how large each block's entries are."""

    rows: Float[Tensor, "n t d"]
    exponentials: Float[Tensor, "n t_pad d_pad"]
    bound: Float[Tensor, "n blocks"]

    def part(self, n: slice, rows: slice) -> Side:
        """Some matrices and rows of it; `rows` starts at a block's edge."""
        padded = slice(rows.start, ceil(rows.stop, BLOCK) * BLOCK)
        blocks = slice(rows.start // BLOCK, ceil(rows.stop, BLOCK))
        return Side(self.rows[n, rows], self.exponentials[n, padded], self.bound[n, blocks])


def side(x: Float[Tensor, "n t d"], transposed: bool) -> Side:
    """e^{2x}, zero past the end; in memory as [n, d, t] for `energies`, whose threads lie along rows and keys."""
    n, t, d = x.shape
    blocks, wide = ceil(t, BLOCK), ceil(d, GROUP) * GROUP
    out = x.new_empty((n, wide, blocks * BLOCK) if transposed else (n, blocks * BLOCK, wide), dtype=torch.float32)
    out = out.mT if transposed else out
    bound = x.new_empty((n, blocks), dtype=torch.float32)
    fast_triton_launch.start(
        _exponentials, (n, blocks, 1), x, *x.stride(), out, *out.stride(), bound, blocks, t, d, wide, BLOCK
    )
    return Side(x, out, bound)


def keys_at_once(d: int, width: int, tile: int) -> tuple[int, int, int]:
    """Keys whose rows of b (or v) are about `tile` numbers, and the powers of two that hold a row of b and of v."""
    deep, wide = max(2, 1 << (d - 1).bit_length()), 1 << (width - 1).bit_length()
    return max(2, min(32, tile // max(deep, wide))), deep, wide


def padded(w: Float[Tensor, " d"]) -> Float[Tensor, " d_pad"]:
    more = -w.shape[0] % GROUP
    return pad(w.float(), (0, more)) if more else w.float().contiguous()


def energies(a: Side, b: Side, w: Float[Tensor, " d_pad"], spans: Spans | None, scale: float, out: Tensor) -> None:
    """log₂e · scale · w·tanh(a_i + b_j) into `out` [n, q_pad, k_pad]; blocks that no row sees stay unwritten."""
    n, q, d = a.rows.shape
    k = b.rows.shape[1]
    u, v = a.exponentials, b.exponentials
    fast_triton_launch.start(
        _energies, (b.bound.shape[1], a.bound.shape[1], n), a.rows, *a.rows.stride(), b.rows, *b.rows.stride(), w,
        u, u.stride(0), u.stride(2), v, v.stride(0), v.stride(2), a.bound, a.bound.stride(0), b.bound,
        b.bound.stride(0), spans, 0 if spans is None else spans.stride(0), out, out.stride(0), out.stride(1),
        q, k, d, w.shape[0], -2 * scale * LOG2E, spans is not None, BLOCK, GROUP, num_warps=4,
    )  # fmt: skip


def pairwise(a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"], w: Float[Tensor, " d"]) -> Float[Tensor, "n q k"]:
    """w·tanh(a_i + b_j) for all i, j: a block of the matrix, for questions about its weights."""
    left, right = side(a, True), side(b, True)
    out = left.bound.new_empty(a.shape[0], *(BLOCK * x.bound.shape[1] for x in (left, right)))
    energies(left, right, padded(w), None, 1 / LOG2E, out)
    return out[:, : a.shape[1], : b.shape[1]]
