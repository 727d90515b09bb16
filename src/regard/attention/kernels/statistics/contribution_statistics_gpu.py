"""Statistics of contributions on a GPU: what a `Contributions` asks, put to the Triton kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch

from .. import ceil
from .block_sizes import programs, sizes
from .kernel_launches import MOST, cell_arguments, largest, launch_walk, mean_map, shares
from .kernel_row_state import kernel_row_state
from .key_block_visibility import equal_blocks
from .matrix_region import matrix_region
from .value_products import ValueProducts

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ...weights import Weights
    from ...weights.weight_statistics import Top
    from .kernel_row_state import KernelRowState
    from .matrix_region import MatrixRegion

SUMS_ROOM = 144 << 20
"""Bytes that the row sums of single programs may take: with more programs for the keys, fewer share the queries, and
each loads its keys and values less often."""


def stats(
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
    r = None if top is not None and top > MOST else matrix_region(w, w.queries)
    products = None if r is None else ValueProducts.of(r, v, g, finite)
    if r is None or products is None:
        return None
    state = kernel_row_state(w, r)
    results: dict[str, Tensor | Top] = {}
    whole = cells if pool == "max" else None
    if total or size or spread or received or received_size or columns is not None or whole:
        results |= _walk(r, state, products, total, size, spread, received, received_size, columns, whole)
    if cells is not None and pool == "mean":
        results["map"] = mean_map(r, state, cells, products)
    if top is not None:
        results["top"] = largest(r, state, top, products)
    return results


def _walk(
    r: MatrixRegion,
    state: KernelRowState,
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
    plan = equal_blocks(r.keys, cut.keys)
    planes = {"total": True, "size": size or spread, "logs": spread, "on": columns is not None}
    kinds = [name for name, flag in planes.items() if flag]
    sums = total or len(kinds) > 1
    most = SUMS_ROOM // (4 * len(kinds) * r.count * r.queries) if sums else plan.blocks
    strips, parts = shares(plan.blocks, ceil(r.queries, cut.queries), r.count, most, programs(r, cut), r.causal)
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
        by_strip=1,
        by_turn=strips,
        turns=ceil(plan.blocks, strips),
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
