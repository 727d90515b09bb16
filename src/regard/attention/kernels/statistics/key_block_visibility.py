"""How the keys are cut into blocks, and which blocks of queries see each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from .. import ceil

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from .matrix_region import MatrixRegion


@dataclass(frozen=True, slots=True)
class KeyBlocks:
    """Keys cut into `columns` cells, and each cell into `per_cell` blocks of `width` keys; the last may be smaller."""

    keys: int
    columns: int
    width: int
    per_cell: int

    @property
    def blocks(self) -> int:
        return self.columns * self.per_cell


def key_blocks(keys: int, cells: int, width: int) -> KeyBlocks:
    """Blocks of `width` keys, smaller where a cell has fewer: none crosses an edge between cells."""
    widest = ceil(keys, cells)
    while width > 16 and width // 2 >= widest:
        width //= 2
    return KeyBlocks(keys, cells, width, ceil(widest, width))


def equal_blocks(keys: int, width: int) -> KeyBlocks:
    """The same without cells. The width does not depend on the length: a kernel is compiled for each width."""
    return KeyBlocks(keys, 1, width, ceil(keys, width))


@lru_cache(maxsize=64)
def edges_of(plan: KeyBlocks, device: torch.device) -> Int[Tensor, "blocks 2"]:
    """Where each block begins and ends; an end at or before the beginning is a block of nothing."""
    edge = torch.arange(plan.columns + 1) * plan.keys // plan.columns
    first = (edge[:-1, None] + torch.arange(plan.per_cell) * plan.width).flatten()
    last = torch.minimum(first + plan.width, edge[1:].repeat_interleave(plan.per_cell))
    return torch.stack([first, last], dim=1).int().to(device)


@lru_cache(maxsize=64)
def _all(plan: KeyBlocks, rows: int, device: torch.device) -> Int[Tensor, "1 blocks 4"]:
    """Without a mask every query sees every key; only a block that is not full needs looking at."""
    first, last = edges_of(plan, torch.device("cpu")).T
    full = last - first == plan.width
    some = rows * (last > first)
    ranges = torch.stack([torch.zeros_like(first), some * ~full, some, some], dim=1)
    return ranges[None].int().to(device)


def ranges_of(r: MatrixRegion, plan: KeyBlocks, tall: int) -> tuple[Tensor, Tensor]:
    """Blocks' edges, and for each [n or 1, blocks, 4] query blocks: from, all seen from, to, and to."""
    edges, rows = edges_of(plan, r.a.device), ceil(r.queries, tall)
    if r.start is None or r.stop is None:
        return edges, _all(plan, rows, r.a.device)
    at_once = max(1, (1 << 24) // (rows * plan.blocks))
    parts = [
        _seen(start, stop, edges, plan, rows, tall, r.keys)
        for start, stop in zip(r.start.split(at_once), r.stop.split(at_once), strict=True)
    ]
    return edges, torch.cat(parts)


def _seen(
    start: Tensor, stop: Tensor, edges: Tensor, plan: KeyBlocks, rows: int, tall: int, keys: int
) -> Int[Tensor, "n blocks 4"]:
    first, last = edges.T[:, :, None]  # [blocks, 1]
    live = stop > start

    def blocked(x: Tensor, fill: int) -> Tensor:
        """[n, rows, tall]"""
        return pad(x, (0, rows * tall - x.shape[1]), value=fill).view(-1, rows, tall)

    since = blocked(start.where(live, keys), keys).amin(-1)[:, None]  # [n, 1, rows]
    until = blocked(stop.where(live, 0), 0).amax(-1)[:, None]
    some = (since < last) & (until > first) & (last > first)  # [n, blocks, rows]
    latest, soonest = blocked(start, 0).amax(-1)[:, None], blocked(stop, keys).amin(-1)[:, None]
    whole = (latest <= first) & (soonest >= last) & (last - first == plan.width)
    row = torch.arange(rows, device=start.device)
    begin = torch.where(some, row, rows).amin(-1)
    end = torch.where(some, row + 1, 0).amax(-1)
    run = torch.where(whole, row, rows).amin(-1)  # where the first run of whole blocks begins, and where it ends
    stopped = torch.where(~whole & (row > run[..., None]), row, rows).amin(-1)
    none = run == rows
    run, stopped = torch.where(none, end, run), torch.where(none, end, stopped)
    return torch.stack([torch.minimum(begin, end), run, stopped, torch.maximum(end, stopped)], dim=-1).int()
