"""Masks by length: `padding` closes the keys and queries after a sequence's end, `prefix` opens the first keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..block_indices import brief, grid
from ..torch_transforms import readable
from .leading_dimensions import check_leading, leading_entries, whole_numbers, without_queries
from .mask import Mask

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ..block_indices import Batch
    from .mask import Interval


class Padding(Mask):
    starts_at_first = True

    def __init__(self, lengths: Tensor) -> None:
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"{type(self).__name__.lower()} needs whole lengths, got a tensor of {lengths.dtype}")
        self.lengths = lengths.to(torch.int64, copy=True)

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        name = type(self).__name__.lower()
        check_leading(f"{name} has lengths", tuple(self.lengths.shape), batch)
        _check_lengths(name, self.lengths, keys, "keys")

    def length(self, batch: Batch) -> Tensor:
        return leading_entries(self.lengths, batch)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        return without_queries(~self(*grid(batch, 1, keys, device)))

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j < self.length(batch)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = self.length(batch).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def batch_bounds(self, batch: tuple[int, ...], keys: int, device: torch.device) -> Interval | None:
        # Called at every step of a decoder; index tensors would take longer than the attention itself.
        if self.lengths.shape != batch:
            return None
        stop = self.lengths.to(device).reshape(-1, 1).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({brief(self.lengths)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        longest = int(self.lengths.max()) if self.lengths.numel() else 0
        return tuple(self.lengths.shape), max(longest, 1), max(longest, 1)


class QueryPadding(Mask):
    """Queries i < length are real; the rest see no key."""

    starts_at_first = True

    def __init__(self, lengths: Tensor) -> None:
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"padding needs whole lengths of the queries, got a tensor of {lengths.dtype}")
        self.lengths = lengths.to(torch.int64, copy=True)

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        check_leading("padding has lengths of queries", tuple(self.lengths.shape), batch)
        _check_lengths("padding", self.lengths, queries, "queries")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return i < leading_entries(self.lengths, batch)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = self(batch, i, i) * keys
        return torch.zeros_like(stop), stop

    def __repr__(self) -> str:
        return f"padding(queries={brief(self.lengths)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        longest = int(self.lengths.max()) if self.lengths.numel() else 0
        return tuple(self.lengths.shape), max(longest, 8), 8


def padding(
    lengths: int | list[int] | Int[Tensor, " *batch"] | None = None,
    *,
    queries: int | list[int] | Int[Tensor, " *batch"] | None = None,
) -> Mask:
    """Keys j < length are real, the rest are padding.

    Lengths, as the ids of `documents`, belong to the first leading dimensions: `[B]` to the batch. A `dense` mask and
    the centers of `window` align with the last, as tensors broadcast: `[B, 1, T_q, T_k]` and `[B, 1, T_q]`.

    `queries` are the lengths of the queries: those from there on see no key, so that their outputs, weights and
    gradients are zero. For queries that are not the last ones use `dense(real[..., None])`.
    """
    if lengths is None and queries is None:
        raise TypeError("padding needs the lengths of the keys, of the queries (queries=…), or both")
    if queries is None:
        return Padding(whole_numbers(lengths))
    own = QueryPadding(whole_numbers(queries))
    return own if lengths is None else Padding(whole_numbers(lengths)) & own


class Prefix(Padding):
    """The same rule as padding; another name because it is used with `|`, to open keys rather than close them."""

    def example(self) -> tuple[tuple[int, ...], int, int]:
        batch, _, longest = super().example()
        return batch, 8, max(8, longest + 4)


def prefix(size: int | list[int] | Int[Tensor, " *batch"]) -> Mask:
    """Every query sees keys j < size: `causal() | prefix(n)` is the prefix language model's mask."""
    return Prefix(whole_numbers(size))


def _check_lengths(name: str, lengths: Tensor, most: int, what: str) -> None:
    # Checked only where reading is free: not on a GPU, and not for tensors without data.
    if lengths.device.type == "cpu" and lengths.numel() and readable(lengths):
        low, high = (int(x) for x in lengths.aminmax())
        if low < 0 or high > most:
            raise ValueError(f"{name} has lengths from {low} to {high}; there are {most} {what}")
