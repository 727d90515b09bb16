"""Statistics of weights in one pass over blocks of the matrix.

Statistics of the attention matrix: each reads blocks of whole rows and keeps only its own small result.

One pass over the blocks serves any number of statistics; those that are not requested cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import torch
from torch.utils.checkpoint import checkpoint

from .blocks import positions, readable, span, traced
from .normalizers import RowState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .blocks import Index
    from .energy_matrix import EnergyMatrix
    from .normalizers import Normalizer
    from .weights import WeightMatrix


class Cells:
    """One dimension divided into cells, for pooling: cell c covers positions `edges[c]` up to `edges[c + 1]`."""

    def __init__(self, edges: Sequence[int], device: torch.device) -> None:
        self.count, length, size = len(edges) - 1, edges[-1] - edges[0], edges[1] - edges[0]
        # Cells of one size, the last perhaps smaller, are a view of the tensor; others are gathered.
        self._size = size if list(edges[:-1]) == list(range(edges[0], edges[-1], size)) else 0
        self._missing = self.count * self._size - length  # positions by which the last is smaller
        if not self._size:
            begin, end = (torch.tensor(x, device=device)[:, None] - edges[0] for x in (edges[:-1], edges[1:]))
            reach = begin + torch.arange(int((end - begin).max()), device=device)  # [cells, largest]
            self._largest = reach.shape[1]
            self._positions = torch.minimum(reach, end - 1).flatten()  # a smaller cell repeats its last position
            self._once = reach < end

    @staticmethod
    def edges(length: int, count: int) -> list[int]:
        """Cell c of C covers ⌊cT/C⌋ up to ⌊(c+1)T/C⌋ of T positions."""
        return [cell * length // count for cell in range(count + 1)]

    @classmethod
    def blocks(cls, length: int, size: int, device: torch.device) -> Cells:
        """Cells of one size; the last may be smaller."""
        return cls([*range(0, length, size), length], device)

    def pool(self, x: Tensor, dim: Literal[-1, -2], pool: str) -> Tensor:
        """The maximum ("max") or the sum of every cell."""
        if self._size == 1:
            return x
        if self._size:
            if self._missing:
                padding = (0, self._missing) if dim == -1 else (0, 0, 0, self._missing)
                x = torch.nn.functional.pad(x, padding, value=-torch.inf if pool == "max" else 0.0)
            x = x.unflatten(dim, (self.count, self._size))
        else:
            shape = (*x.shape[:dim], self.count, self._largest, *x.shape[dim:][1:])
            x = x.flatten(0, -2) if dim == -1 else x  # a matrix: index_select is slow along the last of more dimensions
            x = x.index_select(dim, self._positions).view(shape)
            if pool != "max":
                x *= self._once if dim == -1 else self._once[..., None]
        return x.amax(dim) if pool == "max" else x.sum(dim)


class Block(NamedTuple):
    """Rows of some matrices: their weights, log-weights where asked for, and where they belong.

    Keys after the last one that any of these rows sees may be left out; their weights are zero.
    """

    w: Float[Tensor, "n rows k"]
    log: Float[Tensor, "n rows k"] | None
    n: slice
    rows: slice
    queries: Int[Tensor, " rows"]
    """Which queries of the model these rows are; `rows` counts within what was selected."""


class Top(NamedTuple):
    """The k largest weights of every row, largest first, and the keys they belong to."""

    values: Float[Tensor, "*batch q top"]
    indices: Int[Tensor, "*batch q top"]


@dataclass(frozen=True, slots=True)
class Stats:
    """The results of one pass; None for statistics that were not requested."""

    entropy: Float[Tensor, "*batch q"] | None = None
    """−Σ_j w_ij log w_ij, in nats."""
    top: Top | None = None
    received: Float[Tensor, "*batch k"] | None = None
    """Σ_i w_ij: how much attention each key receives."""
    offsets: Float[Tensor, "*batch q offsets"] | None = None
    """w_{i, i+n} for each offset n; 0 where there is no such key."""
    on: Float[Tensor, "*batch q"] | None = None
    """Σ_j w_ij over chosen keys j."""
    map: Float[Tensor, "*batch rows cols"] | None = None
    fidelity: Float[Tensor, " *batch"] | None = None
    """|W v − out| / |out|: how far the weights shown are from what the model computed."""


class Statistic(Protocol):
    """Reads every block once, and keeps only its own result."""

    def add(self, block: Block) -> None: ...


class Entropy:
    def __init__(self, count: int, queries: int, like: Tensor) -> None:
        self.result = like.new_empty(count, queries)

    def add(self, block: Block) -> None:
        assert block.log is not None
        # 0 · log 0 = 0: the clamp keeps −∞ out of the product. The log-weights are ours to overwrite.
        self.result[block.n, block.rows] = -block.log.clamp_(min=-1e30).mul_(block.w).sum(-1)


class Largest:
    def __init__(self, count: int, queries: int, k: int, like: Tensor) -> None:
        self.k = k
        self.values = like.new_empty(count, queries, k)
        self.indices = torch.empty(count, queries, k, dtype=torch.long, device=like.device)

    def add(self, block: Block) -> None:
        at = block.n, block.rows
        self.values[at], self.indices[at] = block.w.topk(self.k, dim=-1)

    @property
    def result(self) -> Top:
        return Top(self.values, self.indices)


class Received:
    def __init__(self, count: int, keys: int, like: Tensor) -> None:
        self.result = like.new_zeros(count, keys)

    def add(self, block: Block) -> None:
        self.result[block.n, : block.w.shape[-1]] += block.w.sum(-2)


class Offsets:
    def __init__(self, count: int, queries: int, offsets: list[int], like: Tensor) -> None:
        self.offsets = torch.tensor(offsets, device=like.device)
        self.result = like.new_empty(count, queries, len(offsets))

    def add(self, block: Block) -> None:
        keys = block.w.shape[-1]
        if not keys:
            self.result[block.n, block.rows] = 0
            return
        j = block.queries[:, None] + self.offsets  # [rows, offsets]
        there = (j >= 0) & (j < keys)
        w = block.w.gather(-1, j.clamp(0, keys - 1).expand(block.w.shape[0], -1, -1))
        self.result[block.n, block.rows] = w * there


class On:
    def __init__(self, count: int, queries: int, chosen: Bool[Tensor, "n k"], like: Tensor) -> None:
        self.chosen = chosen.to(like.dtype)
        self.result = like.new_empty(count, queries)

    def add(self, block: Block) -> None:
        chosen = (self.chosen[block.n] if self.chosen.shape[0] > 1 else self.chosen)[:, : block.w.shape[-1]]
        self.result[block.n, block.rows] = (block.w @ chosen[..., None]).squeeze(-1)


class Map:
    """The matrix pooled to rows × cols cells, which `Cells.edges` divides it into."""

    def __init__(self, count: int, queries: int, keys: int, size: tuple[int, int], pool: str, like: Tensor) -> None:
        self.pool = pool
        self.cells = like.new_full((count, *size), -torch.inf if pool == "max" else 0.0)
        if 0 in size:
            return  # no queries or no keys
        rows, cols = Cells.edges(queries, size[0]), Cells.edges(keys, size[1])
        self.cols = Cells(cols, like.device)
        height, width = (torch.tensor(edges, device=like.device).diff() for edges in (rows, cols))
        self.cell = torch.arange(size[0], device=like.device).repeat_interleave(height)  # the cell of each row
        self.area = height[:, None] * width

    def add(self, block: Block) -> None:
        if not self.cells.numel():
            return
        pooled = self.cols.pool(block.w, -1, self.pool)
        cell, reduce = self.cell[block.rows], "amax" if self.pool == "max" else "sum"
        self.cells[block.n].scatter_reduce_(1, cell[:, None].expand(pooled.shape), pooled, reduce)

    @property
    def result(self) -> Tensor:
        return self.cells if self.pool == "max" or not self.cells.numel() else self.cells / self.area


class Fidelity:
    def __init__(self, count: int, v: Float[Tensor, "n k d"], out: Float[Tensor, "n q d"], like: Tensor) -> None:
        self.v, self.out = v, out
        self.error, self.norm = like.new_zeros(count), like.new_zeros(count)

    def add(self, block: Block) -> None:
        out = self.out[block.n, block.rows].to(block.w.dtype)
        difference = block.w @ self.v[block.n, : block.w.shape[-1]].to(block.w.dtype) - out
        self.error[block.n] += difference.square().sum((-2, -1))
        self.norm[block.n] += out.square().sum((-2, -1))

    @property
    def result(self) -> Tensor:
        # Zero output and zero error is a perfect match, not 0/0.
        return torch.where(self.error == 0, 0, self.error.sqrt() / self.norm.sqrt())


def flat_outputs(
    weights: WeightMatrix,
    v: Float[Tensor, "*batch k d"],
    out: Float[Tensor, "*batch q d"],
    names: str = "fidelity v out",
) -> tuple[Float[Tensor, "n k d"], Float[Tensor, "n rows d"]]:
    """Values and outputs of the selected matrices and queries, with one leading dimension.

    `names` are what an error message calls the computation and the two tensors.
    """
    energies, lead = weights.energies, weights.leading_shape
    queries, keys = len(weights.queries), energies.keys
    if weights.shape == (*lead, keys):  # the query was one vector
        out = out[..., None, :]
    if energies.groups > 1 and v.dim() >= 3 and v.shape[-3] * energies.groups == energies.batch[-1]:
        v = energies.per_query_head(v)
        if tuple(lead) != energies.batch:  # v has all heads: take those of the selected matrices
            v = energies.flatten(v)[list(weights.entries)].reshape(*lead, *v.shape[-2:])
    try:
        v, out = v.expand(*lead, keys, v.shape[-1]), out.expand(*lead, queries, out.shape[-1])
    except RuntimeError:
        batch, (name, values, rows) = "".join(f"{n}, " for n in lead), names.split()
        raise ValueError(
            f"{name} needs {values} [{batch}{keys}, D_v] and {rows} [{batch}{queries}, D_v]; "
            f"given {values} {list(v.shape)} and {rows} {list(out.shape)}"
        ) from None
    count = len(weights.entries)
    return v.reshape(count, *v.shape[-2:]), out.reshape(count, *out.shape[-2:])


BLOCK = 1 << 20
"""Numbers in one block of rows: 4 MiB of float32, which stay in cache between the statistics that read them."""

STEP = 512
"""Rows that see few keys are computed up to the next multiple of it: blocks of one shape are cheaper to add up."""


@torch.no_grad()
def row_state(weights: WeightMatrix) -> RowState:
    """The state of the selected rows, from their energies."""
    energies, normalize = weights.flat(), weights.normalize
    rest = energies.a.new_empty(len(weights.entries), len(weights.queries), dtype=energies.precision)
    anchor, anchored = torch.empty_like(rest), False
    for n, rows, entries, queries in _parts(weights, energies):
        e = energies.block(entries, queries, slice(0, energies.keys), normalize.absent)
        own = normalize.of_block(energies.batch, entries).row_state(e)
        rest[n, rows] = own.rest
        if own.anchor is not None:
            anchor[n, rows], anchored = own.anchor, True
    return normalize.joined(RowState(rest, anchor if anchored else None))


def logsumexp(weights: WeightMatrix, energies: EnergyMatrix, normalize: Normalizer) -> Float[Tensor, "n rows"]:
    """The logarithm of each row's denominator, from energies with a graph. The backward computes each block again."""

    def block(entries: Index, queries: Index) -> Tensor:
        weights.check_unchanged(learned=True)  # in the backward too, where nothing else would notice
        e = energies.block(entries, queries, slice(0, energies.keys), normalize.absent)
        total = normalize.of_block(energies.batch, entries).logsumexp(e)
        assert total is not None
        return total

    if traced():
        return block(span(weights.entries, weights.device), span(weights.queries, weights.device))
    total = energies.a.new_empty(len(weights.entries), len(weights.queries), dtype=energies.precision)
    for n, rows, entries, queries in _parts(weights, energies):
        total[n, rows] = checkpoint(block, entries, queries, use_reentrant=False)
    return total


def blocks(weights: WeightMatrix, with_log: bool, least: int = 1, whole: bool = False) -> Iterator[Block]:
    """The weights of the selected rows, with all keys where `whole`, else with those that are seen, `least` at least.

    Where weights may be negative there are always all keys: the zeros of masked keys can be the largest.

    A block is valid until the next one: it is computed in the same memory.
    """
    energies, normalize, state = weights.flat(), weights.normalize, weights.row_state()
    # A matrix product of other keys may round energies otherwise than that which the anchors come from.
    whole = whole or not normalize.nonnegative or state.anchor is not None
    j = torch.arange(energies.keys, device=weights.device)
    # Two buffers for all blocks: a fresh 4 MiB tensor per operation costs more in page faults than in work.
    first = energies.a.new_empty(0, dtype=energies.precision)
    second = torch.empty_like(first)
    for n, rows, entries, queries in _parts(weights, energies):
        last = energies.keys if whole else max(least, _reach(energies, entries, queries))
        e = energies.block(entries, queries, slice(0, last), normalize.absent, first)
        own_state = state.map(lambda x, n=n, rows=rows: x[n, rows])  # type: ignore[misc]
        log = normalize.log_weigh_rows(e, own_state)
        if log is not None:
            w = torch.exp(log, out=second.resize_(log.shape)) if with_log else log.exp_()
        else:
            w = normalize.weigh_rows(e, own_state, j[:last])
            log = w.log() if with_log else None
        yield Block(w, log, n, rows, positions(queries, weights.device))


def _parts(weights: WeightMatrix, energies: EnergyMatrix) -> Iterator[tuple[slice, slice, Index, Index]]:
    """Per block its place among the selected matrices and rows, and which matrices and queries these are."""
    for some, few in energies.blocks(len(weights.entries), len(weights.queries), BLOCK):
        n, rows = slice(some.start, some.stop), slice(few.start, few.stop)
        yield n, rows, span(weights.entries[n], weights.device), span(weights.queries[rows], weights.device)


def _reach(energies: EnergyMatrix, entries: Index, queries: Index) -> int:
    """How many keys, counted from the first, these queries can see at most, rounded up to a multiple of `STEP`."""
    device = energies.a.device
    if energies.mask is None or energies.keys <= STEP or device.type != "cpu":  # reading a GPU's numbers waits for it
        return energies.keys
    bounds = energies.interval(positions(entries, device), positions(queries, device))
    if bounds is None or not readable(bounds[1]) or not bounds[1].numel():
        return energies.keys
    return min(energies.keys, -(-int(bounds[1].max()) // STEP) * STEP)
