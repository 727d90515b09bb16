"""Statistics of the attention matrix: each reads blocks of whole rows and keeps only its own small result.

One pass over the blocks serves any number of statistics; those that are not requested cost nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch.utils.checkpoint import checkpoint

from .normalizers import RowState
from .parts import positions, span, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .block_plan import Cut
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

    Keys before the first and after the last that some of these rows see may be left out; their weights are zero.
    """

    w: Float[Tensor, "n rows k"]
    log: Float[Tensor, "n rows k"] | None
    n: slice
    rows: slice
    queries: Int[Tensor, " rows"]
    """Which queries of the model these rows are; `rows` counts within what was selected."""
    first: int = 0
    """The key of the first column. Blocks for statistics of your own begin at key 0."""

    @property
    def cols(self) -> slice:
        return slice(self.first, self.first + self.w.shape[-1])


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
        self.values[at], keys = block.w.topk(self.k, dim=-1)
        self.indices[at] = keys + block.first

    @property
    def result(self) -> Top:
        return Top(self.values, self.indices)


class Received:
    def __init__(self, shape: Shape, _: object = None) -> None:
        self.result = shape.full(0, shape.matrices, shape.keys)

    def add(self, block: Block) -> None:
        self.result[block.n, block.cols] += block.w.sum(-2)


class Offsets:
    def __init__(self, shape: Shape, offsets: list[int]) -> None:
        self.offsets = torch.tensor(offsets, device=shape.device)
        self.result = shape.full(0, shape.matrices, shape.queries, len(offsets))

    def add(self, block: Block) -> None:
        keys = block.w.shape[-1]
        if not keys:
            return
        j = block.queries[:, None] + self.offsets - block.first  # [rows, offsets]
        there = (j >= 0) & (j < keys)
        w = block.w.gather(-1, j.clamp(0, keys - 1).expand(block.w.shape[0], -1, -1))
        self.result[block.n, block.rows] = w * there


class On:
    def __init__(self, shape: Shape, chosen: Bool[Tensor, "n k"]) -> None:
        self.chosen = chosen.to(shape.dtype)
        self.result = shape.full(0, shape.matrices, shape.queries)

    def add(self, block: Block) -> None:
        chosen = (self.chosen[block.n] if self.chosen.shape[0] > 1 else self.chosen)[:, block.cols]
        self.result[block.n, block.rows] = (block.w @ chosen[..., None]).squeeze(-1)


class Map:
    """The matrix pooled to rows × cols cells, which `Cells.edges` divides it into."""

    def __init__(self, shape: Shape, cells: tuple[int, int, str]) -> None:
        *size, self.pool = cells
        self.cells = shape.full(-torch.inf if self.pool == "max" else 0.0, shape.matrices, *size)
        if 0 in size:
            return  # no queries or no keys
        self.edges = Cells.edges(shape.keys, size[1])
        edges = Cells.edges(shape.queries, size[0]), self.edges
        height, width = (torch.tensor(x, device=shape.device).diff() for x in edges)
        self.cell = torch.arange(size[0], device=shape.device).repeat_interleave(height)  # the cell of each row
        self.area = height[:, None] * width

    def add(self, block: Block) -> None:
        if not self.cells.numel():
            return
        cols = block.cols
        first, last = bisect_right(self.edges, cols.start) - 1, bisect_left(self.edges, cols.stop)
        edges = self.edges[first : last + 1]  # of the cells that these keys meet; all other keys weigh 0
        pooled = torch.nn.functional.pad(block.w, (cols.start - edges[0], edges[-1] - cols.stop))
        pooled = Cells(edges, block.w.device).pool(pooled, -1, self.pool)
        pooled = torch.nn.functional.pad(pooled, (first, self.cells.shape[-1] - last))
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
        difference = block.w @ self.v[block.n, block.cols].to(block.w.dtype) - out
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


def blocks(
    weights: Weights, with_log: bool = False, least: int = 1, whole: bool = False, from_first: bool = False
) -> Iterator[Block]:
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
    for cut in first.flat().blocks(weights.entries, weights.queries, BLOCK, whole):
        cut = _widened(cut, least, from_first, weights.keys)
        if not weights.terms:
            w, log = _rows(first, cut, with_log, *buffers)
        else:
            w = buffers[0].new_zeros(cut.shape)
            for factor, one in factors:
                own = _rows(one, cut._replace(known=False), False, *buffers)[0]
                w.add_(own * (factor[cut.n, cut.rows] if isinstance(factor, torch.Tensor) else factor))
            log = w.log() if with_log else None
        queries = span(weights.queries[cut.rows], weights.device)
        yield Block(w, log, cut.n, cut.rows, positions(queries, weights.device), cut.cols.start)  # type: ignore[union-attr]


def _widened(cut: Cut, least: int, from_first: bool, keys: int) -> Cut:
    """The same with keys that lie side by side, `least` at least, from the first key on where it is to be so."""
    cols, known = cut.cols, cut.known
    if not isinstance(cols, slice):
        cols, known = slice(int(cols[0]), int(cols[-1]) + 1), False
    first = 0 if from_first else max(0, min(cols.start, keys - least))
    last = min(keys, max(cols.stop, first + least))
    return cut._replace(cols=slice(first, last), known=known and (first, last) == (cols.start, cols.stop))


def _rows(
    weights: Weights, cut: Cut, with_log: bool, first: Tensor, second: Tensor
) -> tuple[Float[Tensor, "n rows cols"], Float[Tensor, "n rows cols"] | None]:
    """The weights of some of the selected matrices and rows, and their logarithms, in the memory of the buffers."""
    n, rows, cols = cut.n, cut.rows, cut.cols
    normalize, state = weights.normalize, weights.row_state().map(lambda x: x[n, rows])
    at = span(weights.entries[n], weights.device), span(weights.queries[rows], weights.device)
    e = weights.flat().block(*at, cols, normalize.absent, first, cut)
    log = normalize.log_weigh_rows(e, state)
    if log is not None:
        return torch.exp(log, out=second.resize_(log.shape)) if with_log else log.exp_(), log
    w = normalize.weigh_rows(e, state, positions(cols, weights.device))
    return w, w.log() if with_log else None


# Row states


@torch.no_grad()
def row_state(weights: Weights, whole: bool = False) -> RowState:
    """The state of the selected rows, from their energies; of rows of large energies from all keys at once."""
    energies, normalize = weights.flat(), weights.normalize
    rest = energies.a.new_empty(len(weights.entries), len(weights.queries), dtype=energies.precision)
    anchor, anchored = torch.empty_like(rest), False
    for cut in energies.blocks(weights.entries, weights.queries, BLOCK, whole or not normalize.pointwise):
        entries, queries = (span(x, weights.device) for x in (weights.entries[cut.n], weights.queries[cut.rows]))
        e = energies.block(entries, queries, cut.cols, normalize.absent, None, cut)
        own = normalize.of_block(energies.batch, entries).row_state(e)
        number = own.rest
        if normalize.selects_key:
            number = torch.where(number < 0, number, positions(cut.cols, number.device)[number.clamp_min(0)])
        rest[cut.n, cut.rows] = number
        if own.anchor is not None:
            anchor[cut.n, cut.rows], anchored = own.anchor, True
    state = normalize.joined(RowState(rest, anchor if anchored else None))
    return state if whole or state.anchor is None else row_state(weights, whole=True)


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
    for cut in energies.blocks(weights.entries, weights.queries, BLOCK, whole=True):
        entries, queries = (span(x, weights.device) for x in (weights.entries[cut.n], weights.queries[cut.rows]))
        total[cut.n, cut.rows] = checkpoint(block, entries, queries, use_reentrant=False)
    return total


@torch.no_grad()
def pool_keys(weights: Weights, block: int) -> tuple[Float[Tensor, "n rows cells"], Float[Tensor, "n rows cells"]]:
    """The largest weight and the sum of each `block` of keys, for every selected row."""
    shape = len(weights.entries), len(weights.queries), -(-weights.keys // block)
    maxima = torch.full(shape, -torch.inf, dtype=weights.precision, device=weights.device)
    sums, cells = torch.zeros_like(maxima), Cells.blocks(weights.keys, block, weights.device)
    for some in blocks(weights, whole=True):
        maxima[some.n, some.rows] = cells.pool(some.w, -1, "max")
        sums[some.n, some.rows] = cells.pool(some.w, -1, "mean")
    return maxima, sums
