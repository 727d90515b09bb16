"""The document mask: a query sees the keys of its own document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..block_indices import brief, grid
from ..torch_transforms import readable
from .leading_dimensions import check_leading, leading_entries, whole_numbers
from .mask import Mask

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ..block_indices import Batch
    from .mask import Interval


class Documents(Mask):
    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        for ids in (queries, keys):
            if ids.is_floating_point() or ids.dtype == torch.bool or ids.dim() == 0:
                raise TypeError(
                    f"documents needs whole ids of shape [..., T], got {ids.dtype} of shape {list(ids.shape)}"
                )
        self.queries = queries.to(torch.int64, copy=True)  # unsigned differences would wrap
        self.keys = self.queries if keys is queries else keys.to(torch.int64, copy=True)
        # Ids in order make every document one interval of keys. Checked once, here, where it is cheap;
        # a compiled graph cannot read the ids, and takes the general path.
        self.in_order = readable(self.keys) and bool((self.keys.diff(dim=-1) >= 0).all())

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        for ids, length, side in ((self.queries, queries, "queries"), (self.keys, keys, "keys")):
            check_leading(f"documents has {side}' ids", tuple(ids.shape[:-1]), batch)
            if ids.shape[-1] != length:
                raise ValueError(f"documents has ids for {ids.shape[-1]} {side}, there are {length}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return leading_entries(self.queries, batch, i) == leading_entries(self.keys, batch, j)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if self.keys is self.queries:
            return None  # every key is in the document of the query at its place
        leading, i, j = grid(batch, queries, keys, device)
        seen = self(leading, i, j).any(-2)
        return ~seen

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        if not self.in_order:
            return None
        wanted = leading_entries(self.queries, batch, i).squeeze(-1)  # [q] or [n, q]
        ids = leading_entries(self.keys, batch, torch.arange(keys, device=i.device))  # [k] or [n, 1, k]
        if ids.dim() > 1 or wanted.dim() > 1:
            lead = torch.broadcast_shapes(ids.shape[:-2], wanted.shape[:-1])
            ids, wanted = ids.reshape(-1, keys).expand(*lead, keys), wanted.expand(*lead, wanted.shape[-1])
        start, stop = (
            torch.searchsorted(ids.contiguous(), wanted.contiguous(), right=right) for right in (False, True)
        )
        return start[..., None], stop[..., None]

    def __repr__(self) -> str:
        return f"documents({brief(self.queries)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.queries.shape[:-1]), self.queries.shape[-1], self.keys.shape[-1]


def documents(ids: list[int] | Int[Tensor, "*batch q"], keys: Int[Tensor, "*batch k"] | None = None) -> Mask:
    """A query sees the keys of its own document: ids `[T]` or `[B, T]`, of the keys too unless `keys` gives theirs."""
    queries = whole_numbers(ids)
    return Documents(queries, queries if keys is None else torch.as_tensor(keys))
