"""Statistics on a GPU: what a `Weights` or a `Contributions` asks, put to the Triton kernels, imported only to run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...weights.weight_statistics import Top
from .. import ceil
from ..fast_triton_launch import start_by_name
from .matrix_region import (
    KeyBlocks,
    MatrixRegion,
    Sizes,
    ValueProducts,
    kernel_row_state,
    matrix_region,
    no_products,
    programs,
    ranges_of,
    sizes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ...weights import Weights

GROUP = 16
"""Rows or keys that the walk pools at once for a map, where its cells are as large."""
MOST = 32
"""The most weights or contributions of a row that the kernel keeps in registers."""
ROOM = 48 << 20
"""Bytes the sums of single programs may take before they are added up."""
SUMS_ROOM = 144 << 20
"""Bytes that the row sums of single programs may take: with more programs for the keys, fewer share the queries, and
each loads its keys and values less often."""


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
    if (top is not None and top > MOST) or (size is not None and pool == "mean"):
        return None
    r = matrix_region(w, w.queries)
    if r is None or (fidelity is not None and fidelity[0].shape[-1] > 256):
        return None
    state = kernel_row_state(w, r)
    if state is None:
        return None
    chosen = None if columns is None else columns.float()
    results = _walk(r, state, entropy, chosen, received, size)
    if top is not None:
        results["top"] = largest(r, state, top)
    if offsets is not None:
        results["offsets"] = _offsets(r, state, list(offsets))
    if fidelity is not None:
        results["fidelity"] = _fidelity(r, state, *fidelity)
    return results


def pooled(w: Weights, cols: Sequence[int], size: tuple[int, int], pool: str) -> Tensor | None:
    """The weights of these columns pooled to `size` cells [n, *size]; None where the kernels do not apply."""
    if not isinstance(cols, range) or cols.step != 1 or pool == "mean":
        return None
    r = matrix_region(w, w.queries, cols)
    state = None if r is None else kernel_row_state(w, r)
    if r is None or state is None:
        return None
    return _walk(r, state, False, None, False, size)["map"]  # type: ignore[return-value]


def _walk(
    r: MatrixRegion,
    state: Float[Tensor, "n q"],
    entropy: bool,
    chosen: Float[Tensor, "n_or_1 k"] | None,
    received: bool,
    cells: tuple[int, int] | None,
) -> dict[str, Tensor | Top]:
    """One walk for all that look at the whole matrix."""
    answers: dict[str, Tensor | Top] = {}
    if not (entropy or chosen is not None or received or cells):
        return answers
    cut, device = sizes(r, "walk"), r.a.device
    plan = KeyBlocks(r.keys, cut.keys)
    sums = entropy + (chosen is not None)
    most = ROOM // (4 * sums * r.count * r.queries) if sums else plan.blocks
    strips, parts = shares(plan.blocks, ceil(r.queries, cut.queries), r.count, most, programs(r, cut))
    zeros = torch.zeros(sums, r.count, strips, r.queries, device=device)
    taken = torch.empty(r.count, parts, r.keys, device=device) if received else zeros
    # Zeros are where a maximum begins, since weights are not negative.
    shown = torch.zeros(r.count, *cells, device=device) if cells else zeros
    own: dict[str, Any] = cell_arguments(r, cells, cut, plan) if cells else {}
    launch_walk(
        r,
        state,
        cut,
        plan,
        (strips, r.count, parts),
        entropy=zeros[0] if entropy else zeros,
        on=zeros[-1] if chosen is not None else zeros,
        chosen=zeros if chosen is None else chosen.contiguous(),
        chosen_n=0 if chosen is None or chosen.shape[0] == 1 else r.keys,
        received=taken,
        cells=shown.view(torch.int32),
        ENTROPY=entropy,
        ON=chosen is not None,
        RECEIVED=received,
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
    return answers


def _offsets(r: MatrixRegion, state: Float[Tensor, "n q"], offsets: list[int]) -> Float[Tensor, "n q offsets"]:
    from . import row_state_tile_triton

    values = torch.empty(r.count, r.queries, len(offsets), device=r.a.device)
    options = r.arguments() | {"state": state, "values": values, "count": len(offsets), "BM": 32, "num_warps": 4}
    options["shifts"] = _shifts(tuple(n - r.lag for n in offsets), r.a.device)
    start_by_name(row_state_tile_triton.single_weights, (ceil(r.queries, 32), r.count, 1), options)
    return values


@lru_cache(maxsize=16)
def _shifts(offsets: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def _fidelity(
    r: MatrixRegion, state: Float[Tensor, "n q"], v: Float[Tensor, "n k d"], out: Float[Tensor, "n q d"]
) -> Tensor:
    from . import row_state_tile_triton

    cut = sizes(r, "fidelity")
    v, out = (x if x.stride(-1) == 1 else x.contiguous() for x in (v.to(r.a.dtype), out))
    blocks = ceil(r.queries, cut.queries)
    error, norm = torch.empty(2, r.count, blocks, device=r.a.device)
    matrices = torch.arange(r.count, device=r.a.device)
    options = r.arguments() | r.precision() | cut.options() | {"state": state, "error": error, "norm": norm}
    options |= {"v": v, "v_at": matrices * v.stride(0), "v_row": v.stride(1), "DV": v.shape[-1]}
    options |= {"z": out, "z_at": matrices * out.stride(0), "z_row": out.stride(1)}
    options |= {"BDV": max(16, 1 << (v.shape[-1] - 1).bit_length())}
    start_by_name(row_state_tile_triton.fidelity, (blocks, r.count, 1), options)
    error, norm = error.sum(1), norm.sum(1)
    return torch.where(error == 0, 0, error.sqrt() / norm.sqrt())


def contribution_stats(
    w: Weights,
    v: Float[Tensor, "n k d"],
    g: Float[Tensor, "n q d"],
    *,
    finite: bool,
    total: bool,
    size: bool,
    spread: bool,
    top: int | None,
    received: bool,
    received_size: bool,
    columns: Bool[Tensor, "n_or_1 k"] | None,
    cells: tuple[int, int] | None,
    pool: Literal["max", "mean"],
) -> dict[str, Tensor | Top] | None:
    """The results of `Contributions.stats` by name, with one leading dimension; None where no kernel applies.

    `finite` tells whether every value is.
    """
    refused = (top is not None and top > MOST) or (cells is not None and pool == "mean")
    r = None if refused else matrix_region(w, w.queries)
    products = None if r is None else ValueProducts.of(r, v, g, finite)
    if r is None or products is None:
        return None
    state = kernel_row_state(w, r)
    if state is None:
        return None
    results: dict[str, Tensor | Top] = {}
    if total or size or spread or received or received_size or columns is not None or cells:
        results |= _contributions_walk(r, state, products, total, size, spread, received, received_size, columns, cells)
    if top is not None:
        results["top"] = largest(r, state, top, products)
    return results


def _contributions_walk(
    r: MatrixRegion,
    state: Float[Tensor, "n q"],
    products: ValueProducts,
    total: bool,
    size: bool,
    spread: bool,
    received: bool,
    received_size: bool,
    columns: Bool[Tensor, "n_or_1 k"] | None,
    cells: tuple[int, int] | None,
) -> dict[str, Tensor]:
    """One walk for all that look at the whole matrix."""
    cut, device = sizes(r, "contributions"), r.a.device
    plan = KeyBlocks(r.keys, cut.keys)
    planes = {"total": True, "size": size or spread, "logs": spread, "on": columns is not None}
    kinds = [name for name, flag in planes.items() if flag]
    sums = total or len(kinds) > 1
    most = SUMS_ROOM // (4 * len(kinds) * r.count * r.queries) if sums else plan.blocks
    strips, parts = shares(plan.blocks, ceil(r.queries, cut.queries), r.count, most, programs(r, cut))
    own: dict[str, Any] = {"SUMS": sums, "SIZES": size or spread, "ENTROPY": spread, "ON": columns is not None}
    own |= {"RECEIVED": received, "RECEIVED_SIZE": received_size}
    if sums:
        own["sums"] = torch.zeros(len(kinds), r.count, strips, r.queries, device=device)
    if columns is not None:
        own |= {"chosen": columns.float().contiguous(), "chosen_n": 0 if columns.shape[0] == 1 else r.keys}
    by_key = [name for name, flag in (("received", received), ("received_size", received_size)) if flag]
    for name in by_key:
        own[name] = torch.empty(r.count, parts, r.keys, device=device)
    if cells is not None:
        own |= cell_arguments(r, cells, cut, plan)
        own["cells"] = torch.zeros(r.count, *cells, dtype=torch.int32, device=device).view(torch.uint32)
    launch_walk(
        r,
        state,
        cut,
        plan,
        (strips, r.count, parts),
        products,
        **own,
    )
    results: dict[str, Tensor] = {}
    if sums:
        row = dict(zip(kinds, own["sums"].sum(2).unbind(0), strict=True))
        if spread:
            row["spread"] = _entropy(row["size"], row["logs"])
        by_row = {"total": total, "size": size, "spread": spread, "on": columns is not None}
        results |= {name: row[name] for name, flag in by_row.items() if flag}
    for name in by_key:
        results[name] = own[name].sum(1)
    if cells is not None:
        results["map"] = number_of_code(own["cells"])
    return results


def _entropy(size: Float[Tensor, "n q"], logs: Float[Tensor, "n q"]) -> Float[Tensor, "n q"]:
    """log S − Σ_j |C_ij| log |C_ij| / S with S = Σ_j |C_ij|, from logarithms of base 2; 0 where S is."""
    entropy = (size.log2() - logs / size) * math.log(2)
    return entropy.clamp_min_(0).masked_fill_(size == 0, 0)


def number_of_code(code: Int[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The −x of `map_code(x)` in whole_matrix_statistics_triton; 0 for what no number was joined with."""
    bits = code.view(torch.int32)
    return 0.0 - (((bits >> 1) & 0x7FFFFFFF) | (bits << 31)).view(torch.float32)


def shares(blocks: int, row_blocks: int, count: int, most: int, programs: int) -> tuple[int, int]:
    """How many programs share the keys of one matrix, `most` at most, and how many its queries.

    A GPU works on `programs` at once. Two rounds of them, so that none is the last for long, and each with several
    blocks of queries for every block of keys that it loads.
    """
    wanted = max(1, 2 * programs // count)
    strips = max(1, min(blocks, most, 64, wanted))
    return strips, max(1, min(row_blocks // 4, 32, wanted // strips))


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
    state: Float[Tensor, "n q"],
    cut: Sizes,
    plan: KeyBlocks,
    grid: tuple[int, int, int],
    products: ValueProducts | None = None,
    **own: Any,
) -> None:
    """One walk over the matrix: `grid` has strips of keys, matrices, and parts of the queries."""
    from . import whole_matrix_statistics_triton

    edges, ranges = ranges_of(r, plan, cut.queries)
    options = dict.fromkeys(_QUESTIONS, False) | dict.fromkeys(_OUTPUTS, state) | cut.options()
    options |= {"chosen_n": 0, "map_rows": 1, "map_cols": 1, "ROW_GROUP": 1, "COL_GROUP": 1, "BN": plan.width}
    options |= r.arguments() | r.precision() | (no_products(r) if products is None else products.arguments()) | own
    options["PRODUCT_PRECISION"] = options["PRECISION"]
    options |= {
        "state": state,
        "edges": edges,
        "ranges": ranges,
        "blocks": plan.blocks,
        "turns": ceil(plan.blocks, grid[0]),
    }
    options |= {"range_n": 0 if ranges.shape[0] == 1 else 4 * plan.blocks}
    options["SLABS"] = max(1, cut.queries // (16 * cut.warps))
    start_by_name(whole_matrix_statistics_triton.walk, grid, options)


_QUESTIONS = ("ENTROPY", "ON", "SUMS", "SIZES", "RECEIVED", "RECEIVED_SIZE", "MAP", "SPLIT")
_OUTPUTS = (
    *("entropy", "on", "sums", "received", "received_size"),
    *("cells", "row_cells", "col_cells", "chosen"),
)


def cell_arguments(r: MatrixRegion, cells: tuple[int, int], cut: Sizes, plan: KeyBlocks) -> dict[str, Any]:
    """The arguments of a walk that pools the matrix to rows × cols cells by their maximum."""
    rows, cols = (CellPlan.of(length, n, r.a.device) for length, n in zip((r.queries, r.keys), cells, strict=True))
    own = {"map_rows": cells[0], "map_cols": cells[1], "row_cells": rows.cells, "col_cells": cols.cells}
    own |= {"ROW_GROUP": min(rows.group, cut.queries), "COL_GROUP": min(cols.group, plan.width // 4)}
    return own | {"MAP": True, "SPLIT": rows.splits or cols.splits}


def largest(r: MatrixRegion, state: Float[Tensor, "n q"], count: int, products: ValueProducts | None = None) -> Top:
    """The largest weights of every row, or contributions by size, `MOST` at most."""
    from . import top_k_triton

    shape, device, cut = (r.count, r.queries, count), r.a.device, sizes(r, "top")
    result = Top(torch.empty(shape, device=device), torch.empty(shape, dtype=torch.long, device=device))
    options = r.arguments() | r.precision() | (no_products(r) if products is None else products.arguments())
    options |= cut.options() | {"state": state, "count": count}
    options |= {"values": result.values, "indices": result.indices}
    options["SLOTS"] = max(2, 1 << (count - 1).bit_length())
    grid = (ceil(r.queries, cut.queries), r.count, 1)
    start_by_name(top_k_triton.top, grid, options)
    return result
