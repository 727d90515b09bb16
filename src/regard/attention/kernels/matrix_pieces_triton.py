"""Pieces of attention matrices on the GPU: workspace of a bounded size, tiles that are seen, and dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from . import ceil, fast_triton_launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Int
    from torch import Tensor

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
    fast_triton_launch.start(
        _spans, grid, start, *start.stride(), stop, *stop.stride(), spans, spans.stride(0), q, BLOCK
    )
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
