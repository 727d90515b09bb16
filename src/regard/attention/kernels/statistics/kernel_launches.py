"""Starting the kernels that read a whole matrix: the walk over it, its mean over cells, and its largest numbers.

Of weights, or of contributions where there are `ValueProducts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch

from ...weights.weight_statistics import Top
from .. import ceil
from ..fast_triton_launch import start_by_name, with_descriptors
from .block_sizes import Sizes, programs, sizes
from .key_block_visibility import KeyBlocks, key_blocks, ranges_of
from .value_products import ValueProducts, no_products

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .kernel_row_state import KernelRowState
    from .matrix_region import MatrixRegion

CANDIDATES = 8
"""Of so many keys the walk over the matrix remembers only the best one's weight; which it was is asked afterwards."""
GROUP = 16
"""Rows or keys that the walk pools at once for a map, where its cells are as large."""
SEARCH = 1024
"""From so many keys on a threshold for the largest weights is searched first."""
SAMPLE = 4
"""Of so many keys one is looked at to find that threshold."""
MOST = 32
"""The most weights or contributions of a row that the kernel keeps in registers."""
LOADING = 2.5
"""What loading a block of keys costs, in blocks of queries."""
ROOM = 48 << 20
"""Bytes the sums of single programs may take before they are added up."""


@lru_cache(maxsize=256)
def shares(blocks: int, row_blocks: int, count: int, most: int, programs: int, causal: bool) -> tuple[int, int]:
    """How many programs share the keys of one matrix, `most` at most, and how many its queries.

    A GPU works on `programs` at once. What counts is that the last of them end together, that none has more work than
    others, and that each has several blocks of queries for every block of keys that it loads.
    """

    def worth(strips: int, parts: int) -> float:
        waves, steps = count * strips * parts / programs, row_blocks / parts
        balance = _balance_under_causal_mask(blocks, strips) if causal else _filled(blocks / strips)
        return balance * _filled(waves) * _filled(steps) * steps / (steps + LOADING)

    choices = [
        (strips, parts)
        for strips in range(1, max(1, min(blocks, most, 64)) + 1)
        for parts in range(1, max(1, min(row_blocks // 4, 32)) + 1)
        if count * strips * parts <= 16 * programs
    ]
    several = [x for x in choices if count * x[0] * x[1] >= 1.9 * programs]  # no program is the last for long
    return max(several or choices, key=lambda x: worth(*x), default=(1, 1))


def _filled(rounds: float) -> float:
    """The part of the last of some rounds, and of those before it, in which there is work."""
    return rounds / math.ceil(rounds)


def _balance_under_causal_mask(blocks: int, strips: int) -> float:
    """Mean work of a strip ÷ the most that one has, where block b of the keys is seen by blocks − b blocks of queries.

    Strips take one block each, in order and then in reverse. Two such turns are the same work for all. Of the `rest`
    blocks after the last two turns strip 0 has the first, which is the most work that is left.
    """
    rest = blocks % (2 * strips)
    mean = blocks * (blocks + 1) / 2 / strips
    return mean / (mean + rest - rest * (rest + 1) / 2 / strips)


@dataclass(frozen=True, slots=True)
class CellPlan:
    """Positions pooled to cells: cell r of R covers ⌊rT/R⌋ ≤ t < ⌊(r+1)T/R⌋ of T."""

    cells: Int[Tensor, " t"]
    """The cell of each position. A table, because 64-bit division is slow on a GPU."""
    group: int
    """How many positions are pooled at once: a power of two, of which no cell has fewer."""
    splits: bool
    """Whether some group meets two cells."""

    @staticmethod
    @lru_cache(maxsize=32)
    def of(length: int, cells: int, device: torch.device) -> CellPlan:
        group = min(GROUP, 1 << ((length // cells).bit_length() - 1))
        table = (((torch.arange(length) + 1) * cells - 1) // length).int().to(device)
        return CellPlan(table, group, length % cells != 0 or (length // cells) % group != 0)


def launch_walk(
    r: MatrixRegion,
    state: KernelRowState,
    cut: Sizes,
    plan: KeyBlocks,
    grid: tuple[int, int, int],
    products: ValueProducts | None = None,
    first_strip: int = 0,
    **own: Any,
) -> None:
    """One walk over the matrix: `grid` has strips of keys, matrices, and parts of the queries."""
    from . import whole_matrix_statistics_triton

    edges, ranges = ranges_of(r, plan, cut.queries)
    options = dict.fromkeys(_QUESTIONS, False) | dict.fromkeys(_OUTPUTS, state.rest) | cut.options()
    options |= {"chosen_n": 0, "map_rows": 1, "map_cols": 1, "ROW_GROUP": 1, "COL_GROUP": 1, "BN": plan.width}
    options["CANDIDATES"] = min(CANDIDATES, plan.width // 4)
    options |= r.arguments() | r.precision() | (no_products(r) if products is None else products.arguments()) | own
    options["PRODUCT_PRECISION"] = options["PRECISION"]
    options |= state.arguments() | {"edges": edges, "ranges": ranges, "blocks": plan.blocks, "first_strip": first_strip}
    options |= {"range_n": 0 if ranges.shape[0] == 1 else 4 * plan.blocks, "POWER": r.power, "BULK": r.bulk()}
    if products is not None:
        options["BULK"] = options["BULK"] and products.bulk()
    options["PTX"] = r.a.is_cuda and torch.version.hip is None
    options["SLABS"] = max(1, cut.queries // (16 * cut.warps))
    with_descriptors(r.a.device, partial(start_by_name, whole_matrix_statistics_triton.walk, grid, options))


_QUESTIONS = ("ENTROPY", "ON", "MASS", "SUMS", "SIZES", "RECEIVED", "RECEIVED_SIZE", "BEST", "MAP", "SPLIT")
_OUTPUTS = (
    *("entropy", "on", "mass", "sums", "received", "received_size"),
    *("best", "cells", "row_cells", "col_cells", "chosen"),
)


def cell_arguments(r: MatrixRegion, cells: tuple[int, int], cut: Sizes, plan: KeyBlocks) -> dict[str, Any]:
    """The arguments of a walk that pools the matrix to rows × cols cells by their maximum."""
    rows, cols = (CellPlan.of(length, n, r.a.device) for length, n in zip((r.queries, r.keys), cells, strict=True))
    own = {"map_rows": cells[0], "map_cols": cells[1], "row_cells": rows.cells, "col_cells": cols.cells}
    own |= {"ROW_GROUP": min(rows.group, cut.queries), "COL_GROUP": min(cols.group, plan.width // 4)}
    return own | {"MAP": True, "SPLIT": rows.splits or cols.splits}


def mean_map(
    r: MatrixRegion, state: KernelRowState, size: tuple[int, int], products: ValueProducts | None = None
) -> Float[Tensor, "n rows cols"]:
    """Mean per cell: the sum of every row over a column of cells, as many columns at a time as there is room."""
    (rows, cols), cut = size, sizes(r, "walk" if products is None else "contributions")
    plan = key_blocks(r.keys, cols, cut.keys)
    at_once = max(1, min(cols, ROOM // (4 * r.count * r.queries)))
    edges = torch.arange(rows + 1, device=r.a.device) * r.queries // rows
    height, width = edges.diff(), (torch.arange(cols + 1, device=r.a.device) * r.keys // cols).diff()
    out = torch.empty(r.count, rows, cols, device=r.a.device)
    parts = max(1, min(ceil(r.queries, cut.queries) // 4, 5 * programs(r, cut) // (r.count * at_once)))
    for col in range(0, cols, at_once):
        strips = min(at_once, cols - col)
        mass = torch.zeros(r.count, strips, r.queries, device=r.a.device)
        launch_walk(
            r,
            state,
            cut,
            plan,
            (strips, r.count, parts),
            products,
            first_strip=col,
            by_strip=plan.per_cell,
            by_turn=1,
            turns=plan.per_cell,
            mass=mass,
            MASS=True,
        )
        out[:, :, col : col + strips] = _segments(mass, edges).mT
    return out.div_(height[:, None] * width)


def _segments(x: Float[Tensor, "n s q"], edges: Int[Tensor, " cells_1"]) -> Float[Tensor, "n s cells"]:
    """Sums between edges. Equal segments are a view; others gather the tallest's worth and drop what is too much."""
    cells = edges.shape[0] - 1
    if x.shape[-1] % cells == 0:
        return x.view(*x.shape[:-1], cells, -1).sum(-1)
    reach = torch.arange(ceil(x.shape[-1], cells), device=x.device)
    at = edges[:-1, None] + reach  # [cells, tallest]
    return (x[..., at.clamp_max(x.shape[-1] - 1)] * (at < edges[1:, None])).sum(-1)


def largest(r: MatrixRegion, state: KernelRowState, count: int, products: ValueProducts | None = None) -> Top:
    """The largest weights of every row, or contributions by size, `MOST` at most."""
    from . import top_k_triton

    shape, device, cut = (r.count, r.queries, count), r.a.device, sizes(r, "top")
    result = Top(torch.empty(shape, device=device), torch.empty(shape, dtype=torch.long, device=device))
    least = torch.empty(r.count, r.queries, device=device, dtype=torch.float32 if products is None else torch.int32)
    options = r.arguments() | r.precision() | (no_products(r) if products is None else products.arguments())
    options |= cut.options() | state.arguments() | {"count": count, "POWER": r.power}
    options |= {"values": result.values, "indices": result.indices, "least": least, "SAMPLE": SAMPLE}
    options["SLOTS"] = max(2, 1 << (count - 1).bit_length())
    grid = (ceil(r.queries, cut.queries), r.count, 1)
    if r.keys >= SEARCH:
        start_by_name(top_k_triton.threshold, grid, options)
    else:
        least.fill_(-torch.inf if products is None else torch.iinfo(torch.int32).min)
    start_by_name(top_k_triton.top, grid, options)
    return result
