"""Attention by distance on the GPU: E_ij = −scale |a_i − b_j|² / 2 with softmax, or 1/|a_i − b_j| divided by their sum.

    d²_ij = |a_i|² + |b_j|² − 2 a_i·b_j          by tensor cores, where no pair of a tile is near
    d²_ij = Σ_d (a_id − b_jd)²                   as it is defined, in a tile that has a near pair

The first form is off by some ε (|a|² + |b|²), which is too much for near neighbours, the ones that matter; but whether
a tile has any is known once it is computed, and then it is computed again. Backward, with c_ij the slope of −d²_ij/2:

    da_i = Σ_j c_ij (b_j − a_i)       db_j = Σ_i c_ij (a_i − b_j)       c = scale · ds,  or ds / d² for 1/d

as it stands in near tiles, as Σ_j c_ij b_j − a_i Σ_j c_ij in the others. No atomics: two runs, the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from .. import attention_from_energies_triton, ceil, fast_triton_launch
from ..attention_from_energies_triton import MOST
from ..matrix_pieces_triton import BLOCK, LOG2E, meets

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .. import KernelArguments
    from ..matrix_pieces_triton import Spans

GROUP = 16
"""Terms summed before they join the total: a long sum loses digits to its own size."""

FAR = 0.25
"""No pair of a tile is near: d² ≥ FAR (|a|² + |b|²). The products then cost no more than two bits of d²."""

LARGE = tl.constexpr(1e38)


@triton.jit
def _energy(square, scale, INVERSE: tl.constexpr):
    if INVERSE:
        near = tl.maximum(square, 1 / (MOST * MOST), propagate_nan=tl.PropagateNan.ALL)
        return tl.div_rn(1.0, tl.sqrt_rn(near))
    return square * scale


@triton.jit
def _by_products(
    a, a_n, a_t, a_d, b, b_n, b_t, b_d, length_a, length_a_n, length_b, length_b_n, spans, spans_n, e, e_n, e_i,
    near, near_n, q, k, d, scale, far,
    SPANS: tl.constexpr, INVERSE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The energies of a tile from |a|² + |b|² − 2 a·b, and whether some pair of it is near."""
    key_block, row_block, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if SPANS and not meets(spans, spans_n, n, row_block, key_block, BLOCK):
        return
    i, j = row_block * BLOCK + tl.arange(0, BLOCK), key_block * BLOCK + tl.arange(0, BLOCK)
    a += n * a_n + i.to(tl.int64)[:, None] * a_t
    b += n * b_n + j.to(tl.int64)[None, :] * b_t
    products = tl.zeros([BLOCK, BLOCK], tl.float32)
    for first in range(0, d, WIDE):
        at = first + tl.arange(0, WIDE)
        x = tl.load(a + at[None, :] * a_d, (i < q)[:, None] & (at < d)[None, :], 0.0)
        y = tl.load(b + at[:, None] * b_d, (j < k)[None, :] & (at < d)[:, None], 0.0)
        # Three tensor-core products carry float32's digits; a single one keeps 11 bits.
        products = tl.dot(x.to(tl.float32), y.to(tl.float32), products, input_precision="tf32x3")
    of_a = tl.load(length_a + n * length_a_n + i, i < q, 0.0)[:, None]
    of_b = tl.load(length_b + n * length_b_n + j, j < k, 0.0)[None, :]
    square = of_a + of_b - 2 * products
    # Not so for NaN and ∞ either. Beyond the last row or key there are zeros, which are far from nothing.
    apart = (square >= far * (of_a + of_b)) & (of_a + of_b < LARGE)
    tl.store(near + n * near_n + row_block * tl.num_programs(0) + key_block, 1 - tl.min(apart.to(tl.int32)))
    tl.store(e + n * e_n + i[:, None] * e_i + j[None, :], _energy(square, scale, INVERSE))


@triton.jit
def _by_squares(
    x, x_n, x_d, y, y_n, y_d, spans, spans_n, e, e_n, e_i, near, near_n, d, scale,
    SPANS: tl.constexpr, INVERSE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The energies of a tile that has a near pair from Σ_d (x_id − y_jd)²."""
    key_block, row_block, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if SPANS and not meets(spans, spans_n, n, row_block, key_block, BLOCK):
        return
    if tl.load(near + n * near_n + row_block * tl.num_programs(0) + key_block) == 0:
        return
    # [4, rows, keys / 4]: the layout that loads least per pair, as in additive_triton_energies.py.
    i = row_block * BLOCK + tl.arange(0, BLOCK)
    j = key_block * BLOCK + tl.arange(0, 4)[:, None] * (BLOCK // 4) + tl.arange(0, BLOCK // 4)[None, :]
    x += n * x_n + i
    y += n * y_n + j
    square = tl.zeros([4, BLOCK, BLOCK // 4], tl.float32)
    for first in range(0, d, GROUP):
        group = tl.zeros_like(square)
        for g in tl.static_range(GROUP):
            at = first + g
            apart = tl.load(x + at * x_d)[None, :, None] - tl.load(y + at * y_d)[:, None, :]
            group += apart * apart
        square += group
    tl.store(e + n * e_n + i[None, :, None] * e_i + j[:, None, :], _energy(square, scale, INVERSE))


@triton.jit
def _takes(near, near_n, near_own, near_other, spans, spans_n, n, own, other, NEAR, SPANS, KEYS, BLOCK: tl.constexpr):
    """Whether the tile of these blocks has pairs that see each other and is near, or is not, as wanted."""
    takes = (tl.load(near + n * near_n + own * near_own + other * near_other) != 0) == NEAR
    if SPANS:  # a tile that no row sees has no entry in `near`
        takes = takes & meets(spans, spans_n, n, other if KEYS else own, own if KEYS else other, BLOCK)
    return takes


@triton.jit
def _contract_far(
    x, x_n, x_t, x_d, y, y_n, y_t, y_d, near, near_n, near_own, near_other, spans, spans_n, c, c_n, c_own, c_other,
    out, out_n, out_t, count, others, d,
    SPANS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out_id += Σ_t c_it y_td − x_id Σ_t c_it over the other side t in tiles without near pairs, for rows i."""
    part, own, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = own * BLOCK + tl.arange(0, BLOCK)
    at = part * WIDE + tl.arange(0, WIDE)
    c += n * c_n + i[:, None] * c_own
    sums = tl.zeros([BLOCK, WIDE], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for block in range(tl.cdiv(others, BLOCK)):
        if _takes(near, near_n, near_own, near_other, spans, spans_n, n, own, block, False, SPANS, KEYS, BLOCK):
            t = block * BLOCK + tl.arange(0, BLOCK)
            slope = tl.load(c + t[None, :] * c_other)  # [BLOCK, BLOCK]
            theirs = y + n * y_n + t.to(tl.int64)[:, None] * y_t + at[None, :] * y_d
            theirs = tl.load(theirs, (t < others)[:, None] & (at < d)[None, :], 0.0).to(tl.float32)
            sums = tl.dot(slope, theirs, sums, input_precision="tf32x3")
            total += tl.sum(slope, 1)
    mask = (i < count)[:, None] & (at < d)[None, :]
    mine = tl.load(x + n * x_n + i.to(tl.int64)[:, None] * x_t + at[None, :] * x_d, mask, 0.0).to(tl.float32)
    out += n * out_n + i.to(tl.int64)[:, None] * out_t + at[None, :]
    tl.store(out, tl.load(out, mask, 0.0) + (sums - total[:, None] * mine), mask)


@triton.jit
def _contract_near(
    x, x_n, x_t, x_d, y, y_n, y_t, y_d, near, near_n, near_own, near_other, spans, spans_n, c, c_n, c_own, c_other,
    out, out_n, out_t, count, others, d,
    SPANS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out_id += Σ_t c_it (y_td − x_id) over the other side t in tiles with near pairs, for rows i."""
    part, own, n = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = own * ROWS + tl.arange(0, ROWS)
    at = part * 64 + tl.arange(0, 4)[:, None] * 16 + tl.arange(0, 16)[None, :]  # [4, 16]
    inside = at < d
    mask = (i < count)[None, :, None] & inside[:, None, :]
    mine = tl.load(x + n * x_n + i.to(tl.int64)[None, :, None] * x_t + at[:, None, :] * x_d, mask, 0.0).to(tl.float32)
    y += n * y_n + at * y_d
    c += n * c_n + i * c_own
    total = tl.zeros([4, ROWS, 16], tl.float32)
    for block in range(tl.cdiv(others, BLOCK)):
        row = own * ROWS // BLOCK
        if _takes(near, near_n, near_own, near_other, spans, spans_n, n, row, block, True, SPANS, KEYS, BLOCK):
            group = tl.zeros([4, ROWS, 16], tl.float32)
            for first in range(0, BLOCK, 4):
                for step in tl.static_range(4):
                    t = block * BLOCK + first + step
                    slope = tl.load(c + t * c_other)  # [ROWS]
                    theirs = tl.load(y + t.to(tl.int64) * y_t, inside & (t < others), 0.0).to(tl.float32)
                    group += slope[None, :, None] * (theirs[:, None, :] - mine)
            total += group
    out += n * out_n + i.to(tl.int64)[None, :, None] * out_t + at[:, None, :]
    tl.store(out, tl.load(out, mask, 0.0) + total, mask)


@triton.jit
def _prepare(
    x, x_n, x_t, x_d, across, across_n, across_d, squared, squared_n, t, d, d_pad, BLOCK: tl.constexpr
):  # fmt: skip
    n, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, d_pad, 64):
        cols = first + tl.arange(0, 64)
        inside = (rows < t)[:, None] & (cols < d)[None, :]
        here = tl.load(x + n * x_n + rows.to(tl.int64)[:, None] * x_t + cols[None, :] * x_d, inside, 0.0)
        here = here.to(tl.float32)  # [BLOCK, 64]
        total += tl.sum(here * here, 1)
        at = cols.to(tl.int64)[None, :] * across_d + rows[:, None]
        tl.store(across + n * across_n + at, here, (cols < d_pad)[None, :])
    tl.store(squared + n * squared_n + rows, total, rows < t)


class _Side(NamedTuple):
    """Rows as they were given, the same in memory as [n, d, t] in whole blocks with zeros past the end, and |row|²."""

    rows: Float[Tensor, "n t d"]
    across: Float[Tensor, "n d_pad t_pad"]
    squared: Float[Tensor, "n t"]


def _side(rows: Float[Tensor, "n t d"]) -> _Side:
    n, t, d = rows.shape
    blocks, wide = ceil(t, BLOCK), ceil(d, GROUP) * GROUP
    across = rows.new_empty((n, wide, blocks * BLOCK), dtype=torch.float32)
    squared = rows.new_empty((n, t), dtype=torch.float32)
    fast_triton_launch.start(
        _prepare, (n, blocks, 1), rows, *rows.stride(), across, *across.stride()[:2], squared, t, t, d, wide, BLOCK
    )
    return _Side(rows, across, squared)


def _written(
    a: _Side, b: _Side, m: slice, i: slice, spans: Spans | None, scale: float, inverse: bool, out: Tensor
) -> Int[Tensor, "n row_blocks key_blocks"]:
    """The energies of matrices m and rows i into `out` [n, q_pad, k_pad], and which tiles have near pairs.

    What no row sees stays unwritten.
    """
    k, d = b.rows.shape[1:]
    rows, keys = a.rows[m, i], b.rows[m]
    x, y = a.across[m, :, i.start :], b.across[m]
    of_a, of_b = a.squared[m, i], b.squared[m]
    n, q = rows.shape[:2]
    grid = (ceil(k, BLOCK), ceil(q, BLOCK), n)
    near = out.new_empty((n, grid[1], grid[0]), dtype=torch.int32)
    which = (spans, 0 if spans is None else spans.stride(0), out, *out.stride()[:2], near, near.stride(0))
    fast_triton_launch.start(
        _by_products, grid, rows, *rows.stride(), keys, *keys.stride(), of_a, of_a.stride(0), of_b, of_b.stride(0),
        *which, q, k, d, -0.5 * scale, FAR, spans is not None, inverse, BLOCK, 32, num_warps=4,
    )  # fmt: skip
    fast_triton_launch.start(
        _by_squares, grid, x, *x.stride()[:2], y, *y.stride()[:2], *which, d, -0.5 * scale,
        spans is not None, inverse, BLOCK, GROUP, num_warps=4,
    )  # fmt: skip
    return near


def _contracted(
    own: Float[Tensor, "n t d"],
    other: Float[Tensor, "n s d"],
    c: Float[Tensor, "n q_pad k_pad"],
    near: Int[Tensor, "n row_blocks key_blocks"],
    spans: Spans | None,
    out: Float[Tensor, "n t d"],
    keys: bool,
) -> None:
    """Add this piece's part of da (or, for keys, db) to `out`."""
    n, count, d = own.shape
    if keys:
        c, near = c.mT, near.mT
    arguments = (
        own, *own.stride(), other, *other.stride(), near, *near.stride(),
        spans, 0 if spans is None else spans.stride(0), c, *c.stride(), out, *out.stride()[:2],
        count, other.shape[1], d, spans is not None, keys, BLOCK,
    )  # fmt: skip
    wide, tall = min(64, max(16, 1 << (d - 1).bit_length())), BLOCK // 2 if keys else BLOCK
    fast_triton_launch.start(_contract_far, (ceil(d, wide), ceil(count, BLOCK), n), *arguments, wide, num_warps=4)
    fast_triton_launch.start(_contract_near, (ceil(d, 64), ceil(count, tall), n), *arguments, tall, num_warps=4)


def forward(
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    v: Float[Tensor, "n k d_v"],
    *,
    options: KernelArguments,
    inverse: bool,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output, and log-sum-exp (+∞ where a row sees no key) or for inverse distances their sum."""
    left, right = _side(a), _side(b)

    def piece(m: slice, i: slice, spans: Spans | None, e: Tensor) -> None:
        _written(left, right, m, i, spans, options.scale * LOG2E, inverse, e)

    return attention_from_energies_triton.forward(piece, a.shape[1], v, options.expand(*a.shape[:2]), inverse)


def backward(
    grad: Float[Tensor, "n q d_v"],
    grad_state: Float[Tensor, "n q"] | None,
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    v: Float[Tensor, "n k d_v"],
    out: Float[Tensor, "n q d_v"],
    state: Float[Tensor, "n q"],
    *,
    options: KernelArguments,
    inverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and v, each in its tensor's dtype. No gradient of the row state is one of zeros."""
    b = options.without_hidden(b)
    left, right = _side(a), _side(b)
    da, db = (torch.zeros_like(x, dtype=torch.float32, memory_format=torch.contiguous_format) for x in (a, b))
    near = a.new_empty(0, dtype=torch.int32)

    def piece(m: slice, i: slice, spans: Spans | None, e: Tensor) -> None:
        nonlocal near
        near = _written(left, right, m, i, spans, options.scale * LOG2E, inverse, e)

    def contract(m: slice, i: slice, spans: Spans | None, c: Tensor) -> None:
        _contracted(a[m, i], b[m], c, near, spans, da[m, i], keys=False)
        _contracted(b[m], a[m, i], c, near, spans, db[m], keys=True)

    options = options.expand(*a.shape[:2])
    dv = attention_from_energies_triton.backward(
        piece, contract, grad, grad_state, v, out, state, options, again=True, inverse=inverse
    )
    return tuple(g.to(x.dtype) for g, x in zip((da, db, dv), (a, b, v), strict=True))  # type: ignore[return-value]


def pairwise(a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"], inverse: bool) -> Float[Tensor, "n q k"]:
    """−|a_i − b_j|² / 2 or 1/|a_i − b_j| for all i, j: a block of the matrix, for questions about its weights."""
    n, q, k = *a.shape[:2], b.shape[1]
    out = a.new_empty((n, *(ceil(t, BLOCK) * BLOCK for t in (q, k))), dtype=torch.float32)
    _written(_side(a), _side(b), slice(0, n), slice(0, q), None, 1.0, inverse, out)
    return out[:, :q, :k]
