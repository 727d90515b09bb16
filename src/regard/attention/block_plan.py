"""The block plan of a mask: which keys does a block of queries see, in part or whole?

SDPA calls on parts of q, k and v, the formula in blocks, their backward passes and statistics all walk one plan, so a
mask that hides is a mask that saves. A mask of intervals is planned from two numbers per query: queries of the same
interval (a document, a padded entry) are one block that sees all of its keys, others are taken `SIDE` at a time. Any
other mask is asked about every pair once, and its plan is kept as long as the mask.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch

from .parts import TensorVersions, grid, positions, readable, span, unravel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool, Int
    from torch import Tensor

    from .energy_matrix import EnergyMatrix
    from .masks import Mask
    from .parts import Index

SIDE = 128
"""Queries of a block, and keys of a block where a mask is no interval."""
ALIKE = 32
"""Queries in a row with the same interval of keys, from which on they are a block of their own."""
SMALL = 1 << 16
"""Energies below which a plan costs more than it saves."""


class Cut(NamedTuple):
    """A block of some matrices: its queries, and the keys that some of them see. Places among those planned."""

    n: slice
    rows: slice
    cols: Index
    hidden: Bool[Tensor, "rows cols"] | None
    """Which of these energies the mask hides, the same in each of the matrices; None where it hides none."""
    known: bool = True
    """Whether `hidden` says it; else the mask is asked."""

    @property
    def shape(self) -> tuple[int, int, int]:
        cols = self.cols
        wide = cols.stop - cols.start if isinstance(cols, slice) else len(cols)
        return self.n.stop - self.n.start, self.rows.stop - self.rows.start, wide

    def split(self, budget: int) -> Iterator[Cut]:
        """The same in blocks of about `budget` energies, of whole rows."""
        n, rows, cols, hidden, known = self
        count, height, width = self.shape
        tall = max(1, min(height, budget // max(1, width)))
        deep = max(1, min(count, budget // max(1, width * tall)))
        for m in range(n.start, n.stop, deep):
            for i in range(rows.start, rows.stop, tall):
                some = slice(i, min(i + tall, rows.stop))
                own = None if hidden is None else hidden[some.start - rows.start : some.stop - rows.start]
                yield Cut(slice(m, min(m + deep, n.stop)), some, cols, own, known)


class BlockPlan:
    """The blocks of all matrices and queries that were asked about; every row lies in one of them."""

    def __init__(self, energies: EnergyMatrix, entries: Index, queries: Index, every: bool) -> None:
        assert energies.mask is not None
        device = energies.a.device
        self.batch, self.keys = energies.batch, energies.keys
        self.entries, self.queries = positions(entries, device), positions(queries, device)
        self.size = len(self.entries) * len(self.queries) * self.keys
        # Per run of matrices that the mask treats alike, its blocks: rows, keys, whether all of these are seen.
        self._parts: list[tuple[slice, list[tuple[int, int, Index, bool]]]] = []
        bounds = energies.interval(self.entries, self.queries)
        self._bounds = None if bounds is None else self._alive(*bounds)
        if self._bounds is None:
            self._ask(energies.mask, every)
        else:
            start, stop = self._bounds
            differs = (start[1:] != start[:-1]).any(1) | (stop[1:] != stop[:-1]).any(1)
            for n in _runs(differs, len(start), len(self.entries)):
                at = min(n.start, len(start) - 1)
                self._parts.append((n, list(_of_intervals(start[at], stop[at]))))
        self._repeated: set[tuple[int, int]] = set()
        """The blocks whose tile of the mask is that of the block before."""
        self.area = 0
        for n, parts in self._parts:
            for first, last, cols, _ in parts:
                self.area += (n.stop - n.start) * (last - first) * Cut(n, n, cols, None).shape[2]
        self.calls = sum(len(parts) for _, parts in self._parts)

    def _alive(self, start: Tensor, stop: Tensor) -> tuple[Int[Tensor, "m q"], Int[Tensor, "m q"]]:
        """The intervals of all queries; one that sees nothing begins after the last key and ends before the first."""
        shape = max(len(start), len(stop)), len(self.queries)
        start, stop = start.clamp(0, self.keys).expand(shape), stop.clamp(0, self.keys).expand(shape)
        dead = stop <= start
        return start.masked_fill(dead, self.keys), stop.masked_fill(dead, 0)

    def _ask(self, mask: Mask, every: bool) -> None:
        """The blocks of a mask that is no interval, `SIDE` queries at a time."""
        device, keys = self.queries.device, self.keys
        # Of all matrices only what the mask tells apart: one per entry of the batch, say, for all heads.
        batch = grid(self.batch, 0, 0, device)[0] if every else unravel(self.entries, self.batch)
        counts, heights, lead = [], [], torch.Size()
        for first in range(0, len(self.queries), SIDE):
            rows = self.queries[first : first + SIDE]
            if every and mask.seen is not None:
                seen = mask.seen[..., first : first + SIDE, :] if mask.seen.shape[-2] > 1 else mask.seen
            else:
                seen = mask(batch, rows[:, None], torch.arange(keys, device=device))
            lead = seen.shape[:-2]
            seen = seen.expand(*lead, len(rows), keys).reshape(-1, len(rows), keys)
            tall = torch.nn.functional.pad(seen.sum(1, dtype=torch.int32), (0, -keys % SIDE))
            counts.append(tall.unflatten(-1, (-1, SIDE)).sum(-1))  # [m, blocks of keys]
            heights.append(len(rows))
        if not counts:
            return
        source = torch.arange(len(counts[0])).view(lead)
        source = source.expand(self.batch).reshape(-1) if every else source.reshape(-1).expand(len(self.entries))
        wide = torch.tensor([min(SIDE, keys - at) for at in range(0, keys, SIDE)], device=device)
        for n in _runs(source[1:] != source[:-1], len(source), len(source)):
            own: list[tuple[int, int, Index, bool]] = []
            for at, (height, count) in enumerate(zip(heights, counts, strict=True)):
                some, all_of = count[source[n.start]] > 0, count[source[n.start]] == height * wide
                whole = bool(some.any()) and torch.equal(some, all_of)
                cols = _columns(some.nonzero()[:, 0].tolist(), keys, device)
                own.append((at * SIDE, at * SIDE + height, cols, whole))
            self._parts.append((n, own))

    @property
    def saves(self) -> bool:
        """Whether calls on its blocks are cheaper than one call with a dense mask: each costs about 2¹³ energies."""
        return 8 * self.area <= 7 * self.size and self.size - self.area >= self.calls << 13

    def some_of(self, cols: slice) -> bool:
        """Whether some query may see some of these keys."""
        every = (own for _, parts in self._parts for *_, own, _ in parts)
        return any(x.start < cols.stop and x.stop > cols.start if isinstance(x, slice) else True for x in every)

    def cuts(self, mask: Mask) -> Iterator[Cut]:
        hidden, last = None, None
        for n, parts in self._parts:
            for first, stop, cols, whole in parts:
                rows = slice(first, stop)
                if whole:
                    yield Cut(n, rows, cols, None)
                    continue
                if self._bounds is None:
                    batch = unravel(self.entries[n][:1], self.batch)
                    i, j = self.queries[rows][:, None], positions(cols, self.queries.device)
                    seen = mask(batch, i, j)
                    hidden = ~seen.reshape(seen.shape[-2:]).expand(len(i), len(j))
                else:  # the tiles of a window are alike
                    at = min(n.start, len(self._bounds[0]) - 1)
                    assert isinstance(cols, slice)
                    if hidden is None or (n.start, first) not in self._repeated:
                        low, high = (x[at, rows, None] - cols.start for x in self._bounds)
                        j = torch.arange(cols.stop - cols.start, device=low.device)
                        if last is not None and all(map(torch.equal, (low, high, j), last)):
                            self._repeated.add((n.start, first))
                        else:
                            last, hidden = (low, high, j), (j < low) | (j >= high)
                yield Cut(n, rows, cols, hidden)


def _runs(differs: Bool[Tensor, "n_minus_one"], given: int, count: int) -> Iterator[slice]:
    """Runs of entries that are alike; all of them where only one is given."""
    if given == 1:
        yield slice(0, count)
        return
    edges = [0, *(differs.nonzero()[:, 0] + 1).tolist(), count]
    for first, last in pairwise(edges):
        yield slice(first, last)


# Of queries that see nothing, which is a block too, the first key is taken, and hidden.


def _of_intervals(start: Int[Tensor, " q"], stop: Int[Tensor, " q"]) -> Iterator[tuple[int, int, slice, bool]]:
    """The blocks of queries with these intervals of keys."""
    changes = ((start[1:] != start[:-1]) | (stop[1:] != stop[:-1])).nonzero()[:, 0] + 1
    edges = torch.cat([changes.new_zeros(1), changes, changes.new_full((1,), len(start))])
    long = (edges.diff() >= ALIKE).nonzero()[:, 0]
    runs = torch.stack([edges[long], edges[long + 1]], 1).tolist()
    low, high, done = start.tolist(), stop.tolist(), 0
    # Of a narrow window shorter blocks compute less outside of it.
    side = SIDE if sum(high) - sum(low) > 4 * SIDE * len(low) else SIDE // 2
    for first, last in [*runs, [len(low), len(low)]]:
        for a in range(done, first, side):
            b = min(a + side, first)
            least, most = min(low[a:b]), max(high[a:b])
            alike = least == max(low[a:b]) and most == min(high[a:b]) and most > least
            yield a, b, slice(min(least, most), max(most, 1)), alike
        if first < last:
            begin, stop = low[first], high[first]
            yield first, last, slice(min(begin, stop), max(stop, 1)), stop > begin
        done = last


def _columns(blocks: list[int], keys: int, device: torch.device) -> Index:
    """The keys of some blocks of keys: a slice where the blocks lie side by side."""
    if not blocks:
        return slice(0, 1)
    if blocks == list(range(blocks[0], blocks[-1] + 1)):
        return slice(blocks[0] * SIDE, min(keys, (blocks[-1] + 1) * SIDE))
    places = (torch.tensor(blocks, device=device)[:, None] * SIDE + torch.arange(SIDE, device=device)).flatten()
    return places[places < keys]


_KEPT: WeakKeyDictionary[Mask, tuple[object, TensorVersions, BlockPlan]] = WeakKeyDictionary()
"""The last plan of each mask."""


def plan(energies: EnergyMatrix, entries: Sequence[int], queries: Sequence[int]) -> BlockPlan | None:
    """The plan of these matrices and queries; None without a mask, where nothing can be read, and on a GPU.

    There masks go to kernels that skip blocks, and reading where would wait for all work before.
    """
    mask = energies.mask
    if mask is None or energies.a.device.type != "cpu" or not readable(energies.a):
        return None
    if len(entries) * len(queries) * energies.keys < SMALL:
        return None
    key = (energies.batch, energies.keys, entries, queries, values := mask.plain_values())
    kept = _KEPT.get(mask)
    if values is not None and kept is not None and kept[0] == key and not kept[1].changed():
        return kept[2]
    versions = TensorVersions([*mask.tensors(), *mask.function_tensors()])
    every = entries == range(energies.count) and queries == range(energies.queries)
    made = BlockPlan(energies, span(entries, energies.a.device), span(queries, energies.a.device), every)
    _KEPT[mask] = key, versions, made
    return made
