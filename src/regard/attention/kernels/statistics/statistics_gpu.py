"""Statistics on a GPU: what a `Weights` asks, put to the Triton kernels, which are imported only to run."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...weights.weight_statistics import Top
from .. import ceil
from ..fast_triton_launch import start_by_name
from .block_sizes import programs, sizes
from .kernel_launches import CANDIDATES, MOST, ROOM, cell_arguments, largest, launch_walk, mean_map, shares
from .kernel_row_state import KernelRowState, kernel_row_state
from .key_block_visibility import KeyBlocks, edges_of, equal_blocks
from .matrix_region import MatrixRegion, matrix_region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ...weights import Weights


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
    if top is not None and top > MOST:
        return None
    r = matrix_region(w, w.queries)
    if r is None or (fidelity is not None and fidelity[0].shape[-1] > 256):
        return None
    state = kernel_row_state(w, r)
    chosen = None if columns is None else columns.float()
    results = _walk(r, state, entropy, chosen, received, size if pool == "max" else None, top == 1)
    if size is not None and pool == "mean":
        results["map"] = mean_map(r, state, size)
    if top is not None and top > 1:
        results["top"] = largest(r, state, top)
    if offsets is not None:
        results["offsets"] = _offsets(r, state, list(offsets))
    if fidelity is not None:
        results["fidelity"] = _fidelity(r, state, *fidelity)
    return results


def pooled(w: Weights, cols: Sequence[int], size: tuple[int, int], pool: str) -> Tensor | None:
    """The weights of these columns pooled to `size` cells [n, *size]; None where the kernels do not apply."""
    if not isinstance(cols, range) or cols.step != 1:
        return None
    r = matrix_region(w, w.queries, cols)
    if r is None:
        return None
    state = kernel_row_state(w, r)
    if pool == "mean":
        return mean_map(r, state, size)
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
    strips, parts = shares(plan.blocks, ceil(r.queries, cut.queries), r.count, most, programs(r, cut), r.causal)
    zeros = torch.zeros(sums, r.count, strips, r.queries, device=device)
    taken = torch.empty(r.count, parts, r.keys, device=device) if received else zeros
    codes = torch.full((r.count, r.queries), -(1 << 63), device=device) if best else zeros
    # Zeros are where a maximum begins, since weights are not negative.
    shown = torch.zeros(r.count, *cells, device=device) if cells else zeros
    own: dict[str, Any] = cell_arguments(r, cells, cut, plan) if cells else {}
    launch_walk(
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
