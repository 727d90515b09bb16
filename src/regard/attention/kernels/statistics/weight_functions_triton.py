"""From a dot product to a weight, inside a Triton kernel: the pieces every statistics kernel shares."""
# Triton has no types, and its functions take tensors and compile-time constants alike: nothing for mypy to check.
# mypy: ignore-errors

import triton
import triton.language as tl

LENGTHS = [
    "queries", "keys", "bound_n", "range_n", "chosen_n", "blocks", "turns",
    "map_rows", "map_cols", "key0", "count",
]  # fmt: skip
"""Arguments that change with a sequence's length. Triton would compile a kernel anew for 1 and for multiples of 16."""
ADDRESSES = [
    "q_at", "k_at", "state", "place", "slopes", "start", "stop", "edges", "ranges", "row_cells",
    "col_cells", "chosen", "entropy", "on", "sums", "received", "received_size", "cells", "shifts", "values",
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
    """w from energies and row state, which `kernel_row_state.py` prepares."""
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
