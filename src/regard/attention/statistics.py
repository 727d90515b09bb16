"""Statistics of the attention matrix: each reads blocks of whole rows and keeps only its own small result.

One pass over the blocks serves any number of statistics; those that are not requested cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch.utils.checkpoint import checkpoint

from .normalizers import RowState, Softmax, largest, mark_empty
from .parts import positions, span, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .energy_matrix import EnergyMatrix
    from .normalizers import Normalizer
    from .parts import Index
    from .weights import Weights


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


class Answer(Statistic, Protocol):
    """One whose result is a tensor, or values and indices, with one leading dimension."""

    @property
    def result(self) -> Tensor | Top: ...


class Shape(NamedTuple):
    """How many matrices, rows and keys there are, and what their weights are computed in."""

    matrices: int
    queries: int
    keys: int
    dtype: torch.dtype
    device: torch.device

    def full(self, value: float, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=self.dtype, device=self.device)


class Entropy:
    def __init__(self, shape: Shape, _: object = None) -> None:
        self.result = shape.full(0, shape.matrices, shape.queries)

    def add(self, block: Block) -> None:
        assert block.log is not None
        # 0 · log 0 = 0: the clamp keeps −∞ out of the product. The log-weights are ours to overwrite.
        self.result[block.n, block.rows] = -block.log.clamp_(min=-1e30).mul_(block.w).sum(-1)


class Largest:
    def __init__(self, shape: Shape, k: int) -> None:
        self.k, self.values = k, shape.full(0, shape.matrices, shape.queries, k)
        self.indices = torch.zeros_like(self.values, dtype=torch.long)

    def add(self, block: Block) -> None:
        at = block.n, block.rows
        self.values[at], self.indices[at] = block.w.topk(self.k, dim=-1)

    @property
    def result(self) -> Top:
        return Top(self.values, self.indices)


class Received:
    def __init__(self, shape: Shape, _: object = None) -> None:
        self.result = shape.full(0, shape.matrices, shape.keys)

    def add(self, block: Block) -> None:
        self.result[block.n, : block.w.shape[-1]] += block.w.sum(-2)


class Offsets:
    def __init__(self, shape: Shape, offsets: list[int]) -> None:
        self.offsets = torch.tensor(offsets, device=shape.device)
        self.result = shape.full(0, shape.matrices, shape.queries, len(offsets))

    def add(self, block: Block) -> None:
        keys = block.w.shape[-1]
        if not keys:
            return
        j = block.queries[:, None] + self.offsets  # [rows, offsets]
        there = (j >= 0) & (j < keys)
        w = block.w.gather(-1, j.clamp(0, keys - 1).expand(block.w.shape[0], -1, -1))
        self.result[block.n, block.rows] = w * there


class On:
    def __init__(self, shape: Shape, chosen: Bool[Tensor, "n k"]) -> None:
        self.chosen = chosen.to(shape.dtype)
        self.result = shape.full(0, shape.matrices, shape.queries)

    def add(self, block: Block) -> None:
        chosen = (self.chosen[block.n] if self.chosen.shape[0] > 1 else self.chosen)[:, : block.w.shape[-1]]
        self.result[block.n, block.rows] = (block.w @ chosen[..., None]).squeeze(-1)


class Map:
    """The matrix pooled to rows × cols cells, which `Cells.edges` divides it into."""

    def __init__(self, shape: Shape, cells: tuple[int, int, str]) -> None:
        *size, self.pool = cells
        self.cells = shape.full(-torch.inf if self.pool == "max" else 0.0, shape.matrices, *size)
        if 0 in size:
            return  # no queries or no keys
        rows, cols = Cells.edges(shape.queries, size[0]), Cells.edges(shape.keys, size[1])
        self.cols = Cells(cols, shape.device)
        height, width = (torch.tensor(edges, device=shape.device).diff() for edges in (rows, cols))
        self.cell = torch.arange(size[0], device=shape.device).repeat_interleave(height)  # the cell of each row
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
    def __init__(self, shape: Shape, outputs: tuple[Float[Tensor, "n k d"], Float[Tensor, "n q d"]]) -> None:
        self.v, self.out = outputs
        self.error, self.norm = shape.full(0, shape.matrices), shape.full(0, shape.matrices)

    def add(self, block: Block) -> None:
        out = self.out[block.n, block.rows].to(block.w.dtype)
        difference = block.w @ self.v[block.n, : block.w.shape[-1]].to(block.w.dtype) - out
        self.error[block.n] += difference.square().sum((-2, -1))
        self.norm[block.n] += out.square().sum((-2, -1))

    @property
    def result(self) -> Tensor:
        return relative_error(self.error, self.norm)


def relative_error(error: Float[Tensor, " n"], norm: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """|W·v − out| / |out| from both squares. Zeros that are right match, zeros that are wrong have an error of 1."""
    return torch.where(norm == 0, (error != 0).to(norm.dtype), error.sqrt() / norm.sqrt())


# The same of contributions, which have signs


class OfSizes:
    """A statistic of |C_ij|."""

    def __init__(self, statistic: On | Received) -> None:
        self.statistic = statistic

    def add(self, block: Block) -> None:
        self.statistic.add(block._replace(w=block.w.abs()))

    @property
    def result(self) -> Tensor:
        return self.statistic.result


class LargestSizes(Largest):
    """The k contributions of largest size of every row, with their signs."""

    def add(self, block: Block) -> None:
        super().add(block._replace(w=block.w.abs()))
        at = block.n, block.rows
        self.values[at] = block.w.gather(-1, self.indices[at])


class Spread:
    """H = log S − Σ_j |C_ij| log |C_ij| / S with S = Σ_j |C_ij|, after dividing each row by its largest size."""

    def __init__(self, shape: Shape, _: object = None) -> None:
        self.result = shape.full(0, shape.matrices, shape.queries)

    def add(self, block: Block) -> None:
        size = block.w.abs()
        size /= size.amax(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
        total = size.sum(-1)
        entropy = total.log() - torch.xlogy(size, size).sum(-1) / total
        self.result[block.n, block.rows] = entropy.masked_fill_(total == 0, 0)


class SignedMap:
    """The matrix pooled to cells: the mean, or the contribution of largest size with its sign."""

    def __init__(self, shape: Shape, cells: tuple[int, int, str]) -> None:
        self.above = Map(shape, cells)
        self.below = Map(shape, cells) if cells[2] == "max" else None

    def add(self, block: Block) -> None:
        self.above.add(block)
        if self.below is not None:
            self.below.add(block._replace(w=-block.w))

    @property
    def result(self) -> Tensor:
        high = self.above.result
        if self.below is None:
            return high
        low = self.below.result
        return torch.where(high >= low, high, -low)


def _total(shape: Shape, _: object = None) -> On:
    return On(shape, torch.ones(1, shape.keys, dtype=torch.bool, device=shape.device))


class Covered(NamedTuple):
    """How a statistic is answered from blocks of rows, and whether the GPU's kernels answer it."""

    of_blocks: Callable[[Shape, Any], Answer]
    kernel: Callable[[Any], bool] = lambda asked: True


Table = dict[str, Covered]
MOST = 32
"""The most weights or contributions of a row that the kernels keep in registers."""
WIDEST = 256
"""The widest values that they hold."""
_FEW = Covered(Largest, lambda k: k <= MOST)
OF_WEIGHTS: Table = {
    "entropy": Covered(Entropy),
    "top": _FEW,
    "received": Covered(Received),
    "offsets": Covered(Offsets),
    "on": Covered(On),
    "map": Covered(Map, lambda cells: cells[2] == "max"),
    "fidelity": Covered(Fidelity, lambda outputs: outputs[0].shape[-1] <= WIDEST),
}
OF_CONTRIBUTIONS: Table = {
    "total": Covered(_total),
    "size": Covered(lambda shape, _: OfSizes(_total(shape))),
    "spread": Covered(Spread),
    "top": _FEW._replace(of_blocks=LargestSizes),
    "received": Covered(Received),
    "received_size": Covered(lambda shape, _: OfSizes(Received(shape))),
    "on": Covered(On),
    "map": Covered(SignedMap, lambda cells: cells[2] == "max"),
}
PER_QUERY = frozenset({"entropy", "top", "offsets", "on", "total", "size", "spread"})
"""The statistics that have a dimension for queries."""


def flat_outputs(
    weights: Weights,
    v: Float[Tensor, "*batch k d"],
    out: Float[Tensor, "*batch q d"],
    names: str = "fidelity v out",
) -> tuple[Float[Tensor, "n k d"], Float[Tensor, "n rows d"]]:
    """Values and outputs of the selected matrices and queries, with one leading dimension.

    `names` are what an error message calls the computation and the two tensors.
    """
    energies, lead = weights.sources[0][1].energies, weights.leading_shape
    queries, keys = len(weights.queries), weights.keys
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


def blocks(weights: Weights, with_log: bool = False, least: int = 1, whole: bool = False) -> Iterator[Block]:
    """The weights of the selected rows, with all keys where `whole`, else with those that are seen, `least` at least.

    Where weights may be negative there are always all keys: the zeros of masked keys can be the largest.

    A block is valid until the next one: it is computed in the same memory.
    """
    sources, factors = weights.sources, weights.flat_sources()
    for _, one in sources:
        # A matrix product of other keys may round energies otherwise than that which the anchors come from.
        whole = whole or bool(weights.terms) or not one.normalize.nonnegative or one.row_state().anchor is not None
    first = sources[0][1]
    # Two buffers for all blocks: a fresh 4 MiB tensor per operation costs more in page faults than in work.
    buffers = tuple(torch.empty(0, dtype=first.precision, device=first.device) for _ in range(2))
    for n, rows, entries, queries in _parts(first, first.flat()):
        last = weights.keys if whole else min(weights.keys, max(least, _reach(first.flat(), entries, queries)))
        if not weights.terms:
            w, log = _rows(first, n, rows, last, with_log, *buffers)
        else:
            w = buffers[0].new_zeros(n.stop - n.start, rows.stop - rows.start, last)
            for factor, one in factors:
                own = _rows(one, n, rows, last, False, *buffers)[0]
                w.add_(own * (factor[n, rows] if isinstance(factor, torch.Tensor) else factor))
            log = w.log() if with_log else None
        yield Block(w, log, n, rows, positions(queries, weights.device))


def _rows(
    weights: Weights, n: slice, rows: slice, last: int, with_log: bool, first: Tensor, second: Tensor
) -> tuple[Float[Tensor, "n rows last"], Float[Tensor, "n rows last"] | None]:
    """The weights of some of the selected matrices and rows, and their logarithms, in the memory of the buffers."""
    normalize, state = weights.normalize, weights.row_state().map(lambda x: x[n, rows])
    at = span(weights.entries[n], weights.device), span(weights.queries[rows], weights.device)
    e = weights.flat().block(*at, slice(0, last), normalize.absent, first)
    log = normalize.log_weigh_rows(e, state)
    if log is not None:
        return torch.exp(log, out=second.resize_(log.shape)) if with_log else log.exp_(), log
    w = normalize.weigh_rows(e, state, torch.arange(last, device=weights.device))
    return w, w.log() if with_log else None


def _parts(weights: Weights, energies: EnergyMatrix) -> Iterator[tuple[slice, slice, Index, Index]]:
    """Per block its place among the selected matrices and rows, and which matrices and queries these are."""
    for some, few in energies.blocks(len(weights.entries), len(weights.queries), BLOCK):
        n, rows = slice(some.start, some.stop), slice(few.start, few.stop)
        yield n, rows, span(weights.entries[n], weights.device), span(weights.queries[rows], weights.device)


def _reach(energies: EnergyMatrix, entries: Index, queries: Index) -> int:
    """How many keys, counted from the first, these queries can see at most, rounded up to a multiple of `STEP`."""
    if (
        energies.mask is None or energies.keys <= STEP or energies.a.device.type != "cpu"
    ):  # a GPU's numbers are waited for
        return energies.keys
    seen = energies.visible(entries, queries)
    return energies.keys if seen is None else min(energies.keys, -(-seen.most_stop // STEP) * STEP)


# Row states


@torch.no_grad()
def row_state(weights: Weights) -> RowState:
    """The state of the selected rows, from their energies."""
    energies, normalize = weights.flat(), weights.normalize
    rest = energies.a.new_empty(len(weights.entries), len(weights.queries), dtype=energies.precision)
    anchor, anchored = torch.empty_like(rest), False
    by_chunks = energies.keys > 4 * STEP and _is_softmax(normalize)
    for n, rows, entries, queries in (_bands if by_chunks else _parts)(weights, energies):
        if by_chunks:
            own = _joined(
                [normalize.row_state(e) for _, e in _chunks(weights, entries, queries)], normalize, rest[n, rows]
            )
        else:
            e = energies.block(entries, queries, slice(0, energies.keys), normalize.absent)
            own = normalize.of_block(energies.batch, entries).row_state(e)
        rest[n, rows] = own.rest
        if own.anchor is not None:
            anchor[n, rows], anchored = own.anchor, True
    return normalize.joined(RowState(rest, anchor if anchored else None))


def logsumexp(weights: Weights, energies: EnergyMatrix, normalize: Normalizer) -> Float[Tensor, "n rows"]:
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


# Softmax some keys at a time: long rows would leave the cache, and a mask that hides a chunk saves its energies

CHUNK = 1 << 19
"""Energies in memory at once: 2 MiB, which stay in cache between the steps that read them, and leave less to compute
of what a causal mask hides."""
TALL = 512
"""Queries of one chunk: with fewer of them, less is computed of what a causal mask hides."""
SMALL_BLOCK = 8
"""Keys up to which a block is pooled by halves."""
LOG2E = math.log2(math.e)


def _is_softmax(normalize: Normalizer) -> bool:
    """A sink's share is in the row state, not among the keys; a subclass may compute something else."""
    return type(normalize) is Softmax and normalize.sink is None


def _bands(weights: Weights, energies: EnergyMatrix) -> Iterator[tuple[slice, slice, Index, Index]]:
    """`_parts` of one matrix and `TALL` queries each."""
    for at, entry in enumerate(weights.entries):
        for row in range(0, len(weights.queries), TALL):
            rows = slice(row, min(row + TALL, len(weights.queries)))
            yield slice(at, at + 1), rows, slice(entry, entry + 1), span(weights.queries[rows], weights.device)


def _chunks(weights: Weights, entries: Index, queries: Index, multiple: int = 1) -> Iterator[tuple[slice, Tensor]]:
    """Energies [n, rows, keys] of a band, a `multiple` of keys at a time in the same memory, without hidden ones."""
    energies = weights.flat()
    unmasked, seen = energies.unmasked(), energies.visible(entries, queries)
    height = queries.stop - queries.start if isinstance(queries, slice) else len(queries)
    wide, buffer = multiple * max(1, CHUNK // (height * multiple)), energies.a.new_empty(0, dtype=energies.precision)
    for start in range(0, energies.keys, wide):
        cols = slice(start, min(start + wide, energies.keys))
        if seen is None or seen.some_of(cols):
            some = unmasked if seen is not None and seen.all_of(cols) else energies
            yield cols, some.block(entries, queries, cols, -torch.inf, buffer)


def _joined(parts: list[RowState], normalize: Normalizer, like: Tensor) -> RowState:
    """The softmax state of rows from those of their chunks of keys, each with its own maximum as the anchor."""
    if not parts:
        return RowState(torch.full_like(like, torch.inf), torch.zeros_like(like))
    rest = torch.stack([part.rest for part in parts])  # [chunks, n, rows]
    anchors = torch.stack([part.anchor for part in parts if part.anchor is not None])
    seen = rest != torch.inf
    anchor = anchors.masked_fill(~seen, -torch.inf).amax(0)
    anchor = anchor.masked_fill(anchor == -torch.inf, 0)
    moved = (anchors - anchor) / normalize.temperature
    return RowState(mark_empty((rest + moved).masked_fill(~seen, -torch.inf).logsumexp(0)), anchor)


@torch.no_grad()
def pool_keys(weights: Weights, block: int) -> tuple[Float[Tensor, "n rows cells"], Float[Tensor, "n rows cells"]]:
    """The largest weight and the sum of each `block` of keys, for every selected row.

    For softmax in one pass, which finds the row states, too: in each chunk of keys the sums are of exp(e − m) with the
    chunk's own maximum m. After the last chunk the row state is known and rescales them (Milakov & Gimelshein 2018).
    """
    shape = len(weights.entries), len(weights.queries), -(-weights.keys // block)
    maxima = torch.full(shape, -torch.inf, dtype=weights.precision, device=weights.device)
    sums = torch.zeros_like(maxima)
    if weights.terms or not _is_softmax(weights.normalize):
        cells = Cells.blocks(weights.keys, block, weights.device)
        for some in blocks(weights, whole=True):
            maxima[some.n, some.rows] = cells.pool(some.w, -1, "max")
            sums[some.n, some.rows] = cells.pool(some.w, -1, "mean")
        return maxima, sums
    normalize = weights.normalize
    rest, anchor = (torch.empty(shape[:2], dtype=weights.precision, device=weights.device) for _ in range(2))
    for n, rows, entries, queries in _bands(weights, weights.flat()):
        high, total = maxima[n, rows], sums[n, rows]
        parts, places = [], []
        for cols, e in _chunks(weights, entries, queries, block):
            e, at = e.div_(normalize.temperature), slice(cols.start // block, -(-cols.stop // block))
            high[..., at] = _pooled(e, block, "max")
            m = largest(high[..., at])
            total[..., at] = _pooled(_exp_(e.sub_(m)), block, "mean")
            parts.append(RowState(mark_empty(total[..., at].sum(-1).log()), m[..., 0]))
            places.append(at)
        state = _joined(parts, _SOFTMAX, rest[n, rows])
        assert state.anchor is not None
        for at, part in zip(places, parts, strict=True):
            assert part.anchor is not None
            total[..., at] *= ((part.anchor - state.anchor) - state.rest).exp()[..., None]
        _exp_(high.sub_(state.anchor[..., None]).sub_(state.rest[..., None]))
        rest[n, rows], anchor[n, rows] = state.rest, state.anchor * normalize.temperature
    weights.keep_state(normalize.joined(RowState(rest, anchor)))
    return maxima, sums


def _pooled(x: Float[Tensor, "n rows keys"], block: int, pool: str) -> Float[Tensor, "n rows cells"]:
    """The maximum or the sum of each block of keys; of small blocks by halves: torch is slow along a few numbers."""
    if block > SMALL_BLOCK:
        return Cells.blocks(x.shape[-1], block, x.device).pool(x, -1, pool)
    if pool == "max" and x.device.type == "cpu":  # three times as fast as by halves
        return torch.nn.functional.max_pool1d(x, block, ceil_mode=True)
    while block > 1:
        if x.shape[-1] % 2:
            x = torch.nn.functional.pad(x, (0, 1), value=-torch.inf if pool == "max" else 0.0)
        even, odd = x[..., 0::2], x[..., 1::2]
        x = torch.maximum(even, odd) if pool == "max" else even + odd
        block //= 2
    return x


def _exp_(x: Tensor) -> Tensor:
    """e^x in place, as 2^(x log₂ e).

    The exp of MKL, which torch calls on CPU, takes 5 to 30 times as long where the result underflows, as behind a mask.
    """
    return x.mul_(LOG2E).exp2_()


_SOFTMAX = Softmax()
