"""Statistics of contributions: those of weights applied to signed numbers and to their sizes.

Each reads the blocks of `weight_blocks`, with contributions in place of weights, and keeps only its own small result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from ..weights.weight_statistics import Map, Top

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..weights.weight_statistics import Block, Largest, On, Received


@dataclass(frozen=True, slots=True)
class ContributionStats:
    """The results of one pass; None for statistics that were not requested."""

    total: Float[Tensor, "*batch q"] | None = None
    """Σ_j C_ij = g_i · o_i."""
    size: Float[Tensor, "*batch q"] | None = None
    """Σ_j |C_ij|."""
    spread: Float[Tensor, "*batch q"] | None = None
    """The entropy of |C_ij| / Σ_j |C_ij|, in nats."""
    top: Top | None = None
    """The k contributions of largest size of every row, with their signs."""
    received: Float[Tensor, "*batch k"] | None = None
    """Σ_i C_ij."""
    received_size: Float[Tensor, "*batch k"] | None = None
    """Σ_i |C_ij|."""
    on: Float[Tensor, "*batch q"] | None = None
    """Σ_j C_ij over chosen keys j."""
    map: Float[Tensor, "*batch rows cols"] | None = None


class ContributionStatistic(Protocol):
    """A statistic whose result is one tensor, or values and indices."""

    def add(self, block: Block) -> None: ...

    @property
    def result(self) -> Tensor | Top: ...


class OfSizes:
    """A statistic of |C_ij|."""

    def __init__(self, statistic: On | Received) -> None:
        self.statistic = statistic

    def add(self, block: Block) -> None:
        self.statistic.add(block._replace(w=block.w.abs()))

    @property
    def result(self) -> Tensor:
        return self.statistic.result


class LargestSizes:
    """The k contributions of largest size of every row, with their signs."""

    def __init__(self, largest: Largest) -> None:
        self.largest = largest

    def add(self, block: Block) -> None:
        self.largest.add(block._replace(w=block.w.abs()))
        at = block.n, block.rows
        self.largest.values[at] = block.w.gather(-1, self.largest.indices[at])

    @property
    def result(self) -> Top:
        return self.largest.result


class Spread:
    """H = log S − Σ_j |C_ij| log |C_ij| / S with S = Σ_j |C_ij|, after dividing each row by its largest size."""

    def __init__(self, count: int, queries: int, like: Tensor) -> None:
        self.result = like.new_empty(count, queries)

    def add(self, block: Block) -> None:
        size = block.w.abs()
        size /= size.amax(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
        total = size.sum(-1)
        entropy = total.log() - torch.xlogy(size, size).sum(-1) / total
        self.result[block.n, block.rows] = entropy.masked_fill_(total == 0, 0)


def cells_of_map(size: tuple[int, int], pool: str, queries: int, keys: int) -> tuple[int, int]:
    """The rows and columns of a map that is to have at most `size` cells."""
    if pool not in ("max", "mean"):
        raise ValueError(f'pool is {pool!r}; expected "max" or "mean"')
    if size[0] < 1 or size[1] < 1:
        raise ValueError(f"a map needs at least one row and one column, got {size}")
    return min(size[0], queries), min(size[1], keys)


class SignedMap:
    """The matrix pooled to cells: the mean, or the contribution of largest size with its sign."""

    def __init__(
        self, count: int, queries: int, keys: int, size: tuple[int, int], pool: Literal["max", "mean"], like: Tensor
    ) -> None:
        size = cells_of_map(size, pool, queries, keys)
        self.above = Map(count, queries, keys, size, pool, like)
        self.below = Map(count, queries, keys, size, pool, like) if pool == "max" else None

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
