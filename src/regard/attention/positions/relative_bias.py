"""T5's relative positions: a learned number per head for each bucket of distances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..energies.modifiers import Modifier
from ..part import whole
from .position import Position

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..block_indices import Batch


class RelativeBias(Modifier, Position):
    """e_ij + table[bucket(j − i − offset), h] (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each, the other half ranges that grow logarithmically up to `longest`; all
    larger distances share the last. With `bidirectional` keys after the query have half of the buckets for themselves,
    else they count as distance 0. Heads are the dimension before the queries. `table` is a Hugging Face T5 model's
    `relative_attention_bias.weight`; `offset` the position of the first query, for key/value caches.
    """

    opaque = False
    additive = True

    def __init__(
        self,
        table: Float[Tensor, "buckets heads"],
        *,
        bidirectional: bool = True,
        longest: int = 128,
        offset: int = 0,
    ) -> None:
        if not isinstance(table, torch.Tensor) or table.dim() != 2 or not table.is_floating_point():
            raise TypeError(f"RelativeBias takes a tensor of floats [buckets, heads], got {_described(table)}")
        whole("RelativeBias's longest distance", longest)
        exact = table.shape[0] // (4 if bidirectional else 2)
        if exact < 1 or longest <= exact:
            raise ValueError(
                f"RelativeBias with {table.shape[0]} buckets has {exact} for single distances; expected at least one, "
                f"and a longest distance above it, got {longest}"
            )
        self.table, self.bidirectional, self.longest, self.offset = table, bidirectional, longest, offset

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        heads = self.table.shape[1]
        if not batch or batch[-1] != heads:
            raise ValueError(
                f"RelativeBias of {heads} heads needs them in dimension -3, the leading shape is {list(batch)}"
            )

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The row of the table for keys `distance` = j − i from the query."""
        count = self.table.shape[0]
        after = torch.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            after, distance = (distance > 0) * count, distance.abs()
        else:
            distance = (-distance).clamp_min(0)
        exact = count // 2
        growth = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.longest / exact)
        far = (exact + (growth * (count - exact)).long()).clamp_max(count - 1)
        return after + torch.where(distance < exact, distance, far)

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        table = self.table.to(e.device)
        return e + table[self.bucket(j - i - self.offset), batch[-1]].to(e.dtype)

    def continues(self, first: Modifier, queries: int) -> bool:
        if not isinstance(first, RelativeBias) or self.offset != first.offset + queries:
            return False
        same = (self.bidirectional, self.longest) == (first.bidirectional, first.longest)
        return same and (self.table is first.table or torch.equal(self.table, first.table))

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        return self.table.detach().cpu()[self.bucket(distances)].mT

    def __repr__(self) -> str:
        way = "" if self.bidirectional else ", bidirectional=False"
        offset = f", offset={self.offset}" if self.offset else ""
        return f"RelativeBias({list(self.table.shape)}{way}, longest={self.longest}{offset})"


def _described(x: object) -> str:
    return f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
