"""Intervals: a mask by which query i sees the keys from start_i up to stop_i."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import Mask, causal

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

    from ...attention.block_indices import Batch
    from ...attention.masks.mask import Interval


class Intervals(Mask):
    """start_i ≤ j < stop_i: the keys that each step sees in a growing key/value cache.

    The same for every entry and head, [T_q], or different in the first leading dimensions, [B, T_q].
    """

    def __init__(self, start: Int[Tensor, "*batch q"], stop: Int[Tensor, "*batch q"]) -> None:
        self.start, self.stop = start.long(), stop.long()

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if self.start.shape[-1] != queries:
            raise ValueError(f"intervals for {self.start.shape[-1]} queries, there are {queries}")

    def _of(self, batch: Batch, i: Tensor) -> Interval:
        at = (*batch[: self.start.dim() - 1], i)
        return self.start.to(i.device)[at], self.stop.to(i.device)[at]

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        start, stop = self._of(batch, i)
        return (start <= j) & (j < stop)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        start, stop = self._of(batch, i)
        return start.clamp(0, keys), stop.clamp(0, keys)

    def __repr__(self) -> str:
        return f"Intervals({self.start.shape[-1]} queries)"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.start.shape[:-1]), self.start.shape[-1], int(self.stop.max())


def intervals_of(mask: Bool[Tensor, "*batch q k"]) -> Mask | None:
    """The same mask by two numbers per query; None if some query sees no key, or keys with a gap between them.

    Also None if heads have masks of their own.
    """
    if mask.dim() > 4 or (mask.dim() == 4 and mask.shape[1] > 1) or (mask.dim() == 3 and mask.shape[0] > 1):
        return None
    seen = mask[:, 0] if mask.dim() == 4 else mask.reshape(1, *mask.shape[-2:])
    keys = seen.shape[-1]
    count = seen.sum(-1)
    start = seen.to(torch.uint8).argmax(-1)
    last = keys - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)
    if not bool(((count > 0) & (last - start + 1 == count)).all()):
        return None
    start, stop = start.cpu(), (last + 1).cpu()
    if len(start) == 1:
        simplest = intervals(start[0], stop[0], keys)
        return Intervals(start[0], stop[0]) if simplest is None else simplest
    return Intervals(start, stop)


def intervals(start: Int[Tensor, " q"], stop: Int[Tensor, " q"], keys: int) -> Mask | None:
    """The simplest equal mask: None if every query sees all keys, `causal` if it is causal."""
    if bool((start == 0).all()):
        if bool((stop >= keys).all()):
            return None
        offset = int(stop[0]) - 1
        if torch.equal(stop, torch.arange(len(stop)) + 1 + offset):
            return causal(offset)
    return Intervals(start, stop)
