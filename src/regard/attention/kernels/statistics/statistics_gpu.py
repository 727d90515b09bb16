"""Statistics on a GPU: what a `Weights` asks, put to the Triton kernels, which are imported only to run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...weight_statistics import Top
from .. import ceil
from ..fast_triton_launch import start_by_name, with_descriptors
from .kernel_row_state import KernelRowState, kernel_row_state
from .key_block_visibility import KeyBlocks, edges_of, equal_blocks, key_blocks, ranges_of
from .matrix_region import MatrixRegion, Sizes, matrix_region, programs, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ...weights import Weights

TOP = 32
"""The most weights of a row that the kernel keeps in registers."""
CANDIDATES = 8
"""Of so many keys the walk over the matrix remembers only the best one's weight; which it was is asked afterwards."""
GROUP = 16
"""Rows or keys that the walk pools at once for a map, where its cells are as large."""
SEARCH = 1024
"""From so many keys on a threshold for the largest weights is searched first."""
SAMPLE = 4
"""Of so many keys one is looked at to find that threshold."""
LOADING = 2.5
"""What loading a block of keys costs, in blocks of queries."""
ROOM = 48 << 20
"""Bytes the sums of single programs may take before they are added up."""


def stats(
    w: Weights,
    *,
    entropy: bool,
    top: int | None,
    received: bool,
    offsets: Sequence[int] | None,
    columns: Bool[Tensor, "n_or_1 k"] | None,
    size: tuple[int, int] | None,
    pool: Literal["max", "mean"],
    fidelity: tuple[Float[Tensor, "n k d"], Float[Tensor, "n q d"]] | None,
) -> dict[str, Tensor | Top] | None:
    """The results of `Weights.stats` by name, with one leading dimension; None where the kernels do not apply."""
    if top is not None and top > TOP:
        return None
    r = matrix_region(w, w.queries)
    if r is None or (fidelity is not None and fidelity[0].shape[-1] > 256):
        return None
    state = kernel_row_state(w, r)
    chosen = None if columns is None else columns.float()
    results = _walk(r, state, entropy, chosen, received, size if pool == "max" else None, top == 1)
    if size is not None and pool == "mean":
        results["map"] = _mean(r, state, size)
    if top is not None and top > 1:
        results["top"] = _top(r, state, top)
    if offsets is not None:
        results["offsets"] = _offsets(r, state, list(offsets))
    if fidelity is not None:
        results["fidelity"] = _fidelity(r, state, *fidelity)
    return results


def tile(w: Weights, cols: Sequence[int]) -> Tensor | None:
    """The weights of a rectangle [n, rows, cols]; None where the kernels do not apply."""
    if not isinstance(cols, range) or cols.step != 1:
        return None
    r = matrix_region(w, w.queries, cols)
    if r is None:
        return None
    from . import row_state_tile_triton

    out = r.a.new_empty(r.count, r.queries, r.keys, dtype=torch.float32)
    cut = sizes(r, "tile")
    grid = (ceil(r.queries, cut.queries), r.count, ceil(r.keys, cut.keys))
    state = kernel_row_state(w, r)
    options = r.arguments() | r.precision() | cut.options() | state.arguments() | {"out": out, "POWER": r.power}
    start_by_name(row_state_tile_triton.tile, grid, options)
    return out


def pooled(w: Weights, cols: Sequence[int], size: tuple[int, int], pool: str) -> Tensor | None:
    """The same pooled to `size` cells: [n, *size]."""
    if not isinstance(cols, range) or cols.step != 1:
        return None
    r = matrix_region(w, w.queries, cols)
    if r is None:
        return None
    state = kernel_row_state(w, r)
    if pool == "mean":
        return _mean(r, state, size)
    return _walk(r, state, False, None, False, size, False)["map"]  # type: ignore[return-value]


# How it is run


def _walk(
    r: MatrixRegion,
    state: KernelRowState,
    entropy: bool,
    chosen: Float[Tensor, "n_or_1 k"] | None,
    received: bool,
    cells: tuple[int, int] | None,
    best: bool,
) -> dict[str, Tensor | Top]:
    """One walk for all that look at the whole matrix."""
    answers: dict[str, Tensor | Top] = {}
    if not (entropy or chosen is not None or received or cells or best):
        return answers
    cut, device = sizes(r, "walk"), r.a.device
    plan = equal_blocks(r.keys, cut.keys)
    sums = entropy + (chosen is not None)
    most = ROOM // (4 * sums * r.count * r.queries) if sums else plan.blocks
    strips, parts = shares(plan.blocks, ceil(r.queries, cut.queries), r.count, most, programs(r))
    zeros = torch.zeros(sums, r.count, strips, r.queries, device=device)
    taken = torch.empty(r.count, parts, r.keys, device=device) if received else zeros
    codes = torch.full((r.count, r.queries), -(1 << 63), device=device) if best else zeros
    # Zeros are where a maximum begins, since weights are not negative.
    shown = torch.zeros(r.count, *cells, device=device) if cells else zeros
    own: dict[str, Any] = {}
    if cells:
        rows, cols = CellPlan.of(r.queries, cells[0], device), CellPlan.of(r.keys, cells[1], device)
        own = {"map_rows": cells[0], "map_cols": cells[1], "row_cells": rows.cells, "col_cells": cols.cells}
        own |= {"ROW_GROUP": min(rows.group, cut.queries), "COL_GROUP": min(cols.group, plan.width // 4)}
        own["SPLIT"] = rows.splits or cols.splits
    _launch(
        r,
        state,
        cut,
        plan,
        (strips, r.count, parts),
        by_strip=1,
        by_turn=strips,
        turns=ceil(plan.blocks, strips),
        entropy=zeros[0] if entropy else zeros,
        on=zeros[-1] if chosen is not None else zeros,
        chosen=zeros if chosen is None else chosen.contiguous(),
        chosen_n=0 if chosen is None or chosen.shape[0] == 1 else r.keys,
        received=taken,
        best=codes,
        cells=shown.view(torch.int32),
        ENTROPY=entropy,
        ON=chosen is not None,
        RECEIVED=received,
        BEST=best,
        MAP=cells is not None,
        **own,
    )
    if entropy:
        answers["entropy"] = zeros[0].sum(1) * -math.log(2)
    if chosen is not None:
        answers["on"] = zeros[-1].sum(1)
    if received:
        answers["received"] = taken.sum(1)
    if cells:
        answers["map"] = shown
    if best:
        answers["top"] = _which(r, state, codes, plan)
    return answers


@lru_cache(maxsize=256)
def shares(blocks: int, row_blocks: int, count: int, most: int, programs: int) -> tuple[int, int]:
    """How many programs share the keys of one matrix, `most` at most, and how many its queries.

    A GPU works on `programs` at once. What counts is that the last of them end together, that none has a block more
    than others, and that each has several blocks of queries for every block of keys that it loads.
    """

    def worth(strips: int, parts: int) -> float:
        waves, turns, steps = (count * strips * parts / programs, blocks / strips, row_blocks / parts)
        balance = 1.0
        for x in (waves, turns, steps):
            balance *= x / math.ceil(x)
        return balance * steps / (steps + LOADING)

    choices = [
        (strips, parts)
        for strips in range(1, max(1, min(blocks, most, 64)) + 1)
        for parts in range(1, max(1, min(row_blocks // 4, 32)) + 1)
        if count * strips * parts <= 16 * programs
    ]
    several = [x for x in choices if count * x[0] * x[1] >= 1.9 * programs]  # no program is the last for long
    return max(several or choices, key=lambda x: worth(*x), default=(1, 1))


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


def _launch(
    r: MatrixRegion,
    state: KernelRowState,
    cut: Sizes,
    plan: KeyBlocks,
    grid: tuple[int, int, int],
    first_strip: int = 0,
    **own: Any,
) -> None:  # fmt: skip
    from . import whole_matrix_statistics_triton

    edges, ranges = ranges_of(r, plan, cut.queries)
    options = dict.fromkeys(("ENTROPY", "ON", "MASS", "RECEIVED", "BEST", "MAP", "SPLIT"), False) | cut.options()
    options |= dict.fromkeys(_OUTPUTS, own.get("entropy", state.rest))
    options |= {"chosen_n": 0, "map_rows": 1, "map_cols": 1, "ROW_GROUP": 1, "COL_GROUP": 1, "BN": plan.width}
    options["CANDIDATES"] = min(CANDIDATES, plan.width // 4)
    options |= r.arguments() | r.precision() | own
    options |= state.arguments() | {"edges": edges, "ranges": ranges, "blocks": plan.blocks, "first_strip": first_strip}
    options |= {"range_n": 0 if ranges.shape[0] == 1 else 4 * plan.blocks, "POWER": r.power, "BULK": r.bulk()}
    options["SLABS"] = max(1, cut.queries // (16 * cut.warps))
    # Whether cells split groups of rows or keys depends on the length; the first map compiles for both.
    other = {"SPLIT": not options["SPLIT"]} if options["MAP"] else None
    with_descriptors(r.a.device, partial(start_by_name, whole_matrix_statistics_triton.walk, grid, options, other))


_OUTPUTS = ("entropy", "on", "mass", "received", "best", "cells", "row_cells", "col_cells", "chosen")


def _mean(r: MatrixRegion, state: KernelRowState, size: tuple[int, int]) -> Float[Tensor, "n rows cols"]:
    """Mean weight per cell: what every row gives to a column of cells, as many columns at a time as there is room."""
    (rows, cols), cut = size, sizes(r, "walk")
    plan = key_blocks(r.keys, cols, cut.keys)
    at_once = max(1, min(cols, ROOM // (4 * r.count * r.queries)))
    edges = torch.arange(rows + 1, device=r.a.device) * r.queries // rows
    height, width = edges.diff(), (torch.arange(cols + 1, device=r.a.device) * r.keys // cols).diff()
    out = torch.empty(r.count, rows, cols, device=r.a.device)
    parts = max(1, min(ceil(r.queries, cut.queries) // 4, 5 * programs(r) // (r.count * at_once)))
    for col in range(0, cols, at_once):
        strips = min(at_once, cols - col)
        mass = torch.zeros(r.count, strips, r.queries, device=r.a.device)
        _launch(
            r,
            state,
            cut,
            plan,
            (strips, r.count, parts),
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


def _which(r: MatrixRegion, state: KernelRowState, codes: Tensor, plan: KeyBlocks) -> Top:
    values, indices = _single(r, state, 1, best=codes, plan=plan)
    return Top(values, indices)


def _offsets(r: MatrixRegion, state: KernelRowState, offsets: list[int]) -> Float[Tensor, "n q offsets"]:
    shifts = _shifts(tuple(n - r.lag for n in offsets), r.a.device)
    return _single(r, state, len(offsets), shifts=shifts)[0]


@lru_cache(maxsize=16)
def _shifts(offsets: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def _single(
    r: MatrixRegion,
    state: KernelRowState,
    count: int,
    best: Tensor | None = None,
    plan: KeyBlocks | None = None,
    shifts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    from . import row_state_tile_triton

    values = torch.empty(r.count, r.queries, count, device=r.a.device)
    indices = torch.empty(values.shape if best is not None else 0, dtype=torch.long, device=r.a.device)
    candidates = 1 if plan is None else min(CANDIDATES, plan.width // 4)
    options = (
        r.arguments() | state.arguments() | {"values": values, "indices": indices, "count": count, "POWER": r.power}
    )
    options |= {"shifts": r.place if shifts is None else shifts, "best": r.place if best is None else best}
    options |= {"edges": r.place if plan is None else edges_of(plan, r.a.device), "BEST": best is not None}
    options |= {"CANDIDATES": candidates, "GROUPS": 1 if plan is None else plan.width // candidates}
    grid = (ceil(r.queries, 32), r.count, 1)
    start_by_name(row_state_tile_triton.single_weights, grid, options | {"BM": 32, "num_warps": 4})
    return values, indices


def _top(r: MatrixRegion, state: KernelRowState, count: int) -> Top:
    from . import top_k_triton

    shape, device = (r.count, r.queries, count), r.a.device
    answer = Top(torch.empty(shape, device=device), torch.empty(shape, dtype=torch.long, device=device))
    least = torch.empty(r.count, r.queries, device=device)
    cut = sizes(r, "top")
    options = r.arguments() | r.precision() | cut.options() | state.arguments() | {"count": count, "POWER": r.power}
    options |= {"values": answer.values, "indices": answer.indices, "least": least, "SAMPLE": SAMPLE}
    options["SLOTS"] = max(2, 1 << (count - 1).bit_length())
    grid = (ceil(r.queries, cut.queries), r.count, 1)
    if r.keys >= SEARCH:
        start_by_name(top_k_triton.threshold, grid, options)
    else:
        least.fill_(-torch.inf)
    start_by_name(top_k_triton.top, grid, options)
    return answer


def _fidelity(r: MatrixRegion, state: KernelRowState, v: Float[Tensor, "n k d"], out: Float[Tensor, "n q d"]) -> Tensor:
    from . import row_state_tile_triton

    cut = sizes(r, "fidelity")
    v, out = (x if x.stride(-1) == 1 else x.contiguous() for x in (v.to(r.a.dtype), out))
    blocks = ceil(r.queries, cut.queries)
    error, norm = torch.empty(2, r.count, blocks, device=r.a.device)
    matrices = torch.arange(r.count, device=r.a.device)
    options = r.arguments() | r.precision() | cut.options() | state.arguments() | {"error": error, "norm": norm}
    options |= {"v": v, "v_at": matrices * v.stride(0), "v_row": v.stride(1), "DV": v.shape[-1], "POWER": r.power}
    options |= {"z": out, "z_at": matrices * out.stride(0), "z_row": out.stride(1)}
    options |= {"BDV": max(16, 1 << (v.shape[-1] - 1).bit_length())}
    start_by_name(row_state_tile_triton.fidelity, (blocks, r.count, 1), options)
    error, norm = error.sum(1), norm.sum(1)
    return torch.where(error == 0, 0, error.sqrt() / norm.sqrt())
