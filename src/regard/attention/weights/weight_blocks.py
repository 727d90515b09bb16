"""The rows of `Weights` a block at a time: their state, and their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from ..block_indices import positions, span
from ..normalizers.normalizer import RowState
from ..torch_transforms import readable, traced
from .weight_statistics import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float
    from torch import Tensor

    from ..block_indices import Index
    from ..energies.lazy_energy_matrix import EnergyMatrix
    from ..normalizers.normalizer import Normalizer
    from .lazy_weight_matrix import WeightMatrix

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
