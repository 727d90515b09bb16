"""Statistics on a GPU: what a `Weights` asks, put to the Triton kernels, which are imported only to run."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...weight_statistics import Top
from .. import ceil
from ..fast_triton_launch import with_descriptors
from .kernel_row_state import KernelRowState, kernel_row_state
from .key_block_visibility import KeyBlocks, edges_of, key_blocks, ranges_of
from .matrix_region import MatrixRegion, Sizes, matrix_region, sizes, waves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ...weights import Weights

TOP = 32
"""The most weights of a row that the kernel keeps in registers."""
CANDIDATES = 8
"""Of so many keys the walk over the matrix remembers only the best one's weight; which it was is asked afterwards."""
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
    best = top == 1
    results = _walk(r, state, entropy, chosen, received, size if pool == "max" else None, best)
    if size is not None and pool == "mean":
        results["map"] = _mean(r, state, size)
    if top is not None and not best:
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
    from . import row_state_topk_tile_triton

    out = r.a.new_empty(r.count, r.queries, r.keys, dtype=torch.float32)
    cut = sizes(r, "tile")
    grid = (ceil(r.queries, cut.queries), r.count, ceil(r.keys, cut.keys))
    state = kernel_row_state(w, r)
    row_state_topk_tile_triton.tile[grid](
        **r.arguments(), **r.precision(), **cut.options(), **state.arguments(), out=out, POWER=r.power
    )
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
    plan = key_blocks(r.keys, cells[1] if cells else 1, cut.keys)
    # The fewer row sums there are to keep, the more programs may share the keys; else they share the queries.
    want = max(1, waves(r) // r.count)
    sums = entropy + (chosen is not None)
    strips = min(plan.blocks, want if not sums else math.isqrt(2 * want))
    while sums and strips > 1 and sums * strips * r.count * r.queries * 4 > ROOM:
        strips //= 2
    parts = max(1, min(ceil(r.queries, cut.queries) // 4, want // strips))
    zeros = torch.zeros(sums, r.count, strips, r.queries, device=device)
    taken = torch.empty(r.count, parts, r.keys, device=device) if received else zeros
    codes = torch.full((r.count, r.queries), -(1 << 63), device=device) if best else zeros
    # Zeros are where a maximum begins, since weights are not negative.
    shown = torch.zeros(r.count, *cells, device=device) if cells else zeros
    height = r.queries // cells[0] if cells and r.queries % cells[0] == 0 else 1
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
        row_cells=_row_cells(r.queries, cells[0], device) if cells else zeros,
        map_rows=cells[0] if cells else 1,
        map_cols=cells[1] if cells else 1,
        ENTROPY=entropy,
        ON=chosen is not None,
        RECEIVED=received,
        BEST=best,
        MAP=cells is not None,
        GROUP=16 if height % 16 == 0 else 1,
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


@lru_cache(maxsize=16)
def _row_cells(queries: int, cells: int, device: torch.device) -> Int[Tensor, " q"]:
    """The cell of each row: the r with ⌊rT/R⌋ ≤ t < ⌊(r+1)T/R⌋. A table, because 64-bit division is slow on a GPU."""
    return (((torch.arange(queries) + 1) * cells - 1) // queries).int().to(device)


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
    unused = own.get("entropy", state.rest)
    flags = dict.fromkeys(("ENTROPY", "ON", "MASS", "RECEIVED", "BEST", "MAP"), False)
    spare = dict.fromkeys(("entropy", "on", "mass", "received", "best", "cells", "row_cells", "chosen"), unused)
    counts = {"chosen_n": 0, "map_rows": 1, "map_cols": 1, "GROUP": 1}
    options = cut.options() | {"BN": plan.width}
    options |= r.arguments() | r.precision() | flags | spare | counts | own
    start = partial(
        whole_matrix_statistics_triton.walk[grid],
        **options,
        **state.arguments(),
        edges=edges,
        ranges=ranges,
        range_n=0 if ranges.shape[0] == 1 else 4 * plan.blocks,
        blocks=plan.blocks,
        per_cell=plan.per_cell,
        first_strip=first_strip,
        POWER=r.power,
        EDGES=plan.ragged or r.start is not None,
        CELLS=plan.cells,
        CANDIDATES=min(CANDIDATES, plan.width // 2),
        SLABS=max(1, cut.queries // (16 * cut.warps)),
        BULK=r.bulk(),
    )
    with_descriptors(r.a.device, start)


def _mean(r: MatrixRegion, state: KernelRowState, size: tuple[int, int]) -> Float[Tensor, "n rows cols"]:
    """Mean weight per cell: what every row gives to a column of cells, as many columns at a time as there is room."""
    (rows, cols), cut = size, sizes(r, "walk")
    plan = key_blocks(r.keys, cols, cut.keys, alone=True)
    at_once = max(1, min(cols, ROOM // (4 * r.count * r.queries)))
    edges = torch.arange(rows + 1, device=r.a.device) * r.queries // rows
    height, width = edges.diff(), (torch.arange(cols + 1, device=r.a.device) * r.keys // cols).diff()
    out = torch.empty(r.count, rows, cols, device=r.a.device)
    parts = max(1, min(ceil(r.queries, cut.queries) // 4, waves(r) // (r.count * at_once)))
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
    shifts = torch.tensor([n - r.lag for n in offsets], dtype=torch.int32, device=r.a.device)
    return _single(r, state, len(offsets), shifts=shifts)[0]


def _single(
    r: MatrixRegion,
    state: KernelRowState,
    count: int,
    best: Tensor | None = None,
    plan: KeyBlocks | None = None,
    shifts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    from . import row_state_topk_tile_triton

    values = torch.empty(r.count, r.queries, count, device=r.a.device)
    indices = torch.empty(values.shape if best is not None else 0, dtype=torch.long, device=r.a.device)
    width = 2 if plan is None else plan.width
    candidates = min(CANDIDATES, width // 2)
    row_state_topk_tile_triton.single_weights[(ceil(r.queries, 32), r.count)](
        **r.arguments(),
        **state.arguments(),
        shifts=r.place if shifts is None else shifts,
        best=r.place if best is None else best,
        edges=r.place if plan is None else edges_of(plan, r.a.device),
        values=values,
        indices=indices,
        count=count,
        POWER=r.power,
        BEST=best is not None,
        CANDIDATES=candidates,
        APART=width // candidates,
        BM=32,
        num_warps=4,
    )
    return values, indices


def _top(r: MatrixRegion, state: KernelRowState, count: int) -> Top:
    from . import row_state_topk_tile_triton

    values = torch.empty(r.count, r.queries, count, device=r.a.device)
    indices = torch.empty(r.count, r.queries, count, dtype=torch.long, device=r.a.device)
    cut = sizes(r, "top")
    row_state_topk_tile_triton.top[(ceil(r.queries, cut.queries), r.count)](
        **r.arguments(),
        **r.precision(),
        **cut.options(),
        **state.arguments(),
        values=values,
        indices=indices,
        count=count,
        POWER=r.power,
        SLOTS=max(2, 1 << (count - 1).bit_length()),
    )
    return Top(values, indices)


def _fidelity(r: MatrixRegion, state: KernelRowState, v: Float[Tensor, "n k d"], out: Float[Tensor, "n q d"]) -> Tensor:
    from . import row_state_topk_tile_triton

    cut = sizes(r, "fidelity")
    v, out = (x if x.stride(-1) == 1 else x.contiguous() for x in (v.to(r.a.dtype), out))
    blocks = ceil(r.queries, cut.queries)
    error, norm = torch.empty(2, r.count, blocks, device=r.a.device)
    row_state_topk_tile_triton.fidelity[(blocks, r.count)](
        **r.arguments(),
        **r.precision(),
        **cut.options(),
        v=v,
        z=out,
        v_at=torch.arange(r.count, device=r.a.device) * v.stride(0),
        z_at=torch.arange(r.count, device=r.a.device) * out.stride(0),
        **state.arguments(),
        error=error,
        norm=norm,
        v_row=v.stride(1),
        z_row=out.stride(1),
        POWER=r.power,
        DV=v.shape[-1],
        BDV=max(16, 1 << (v.shape[-1] - 1).bit_length()),
    )
    error, norm = error.sum(1), norm.sum(1)
    return torch.where(error == 0, 0, error.sqrt() / norm.sqrt())
