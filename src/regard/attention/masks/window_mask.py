"""The window mask: query i sees the keys near its place, or near a center of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..block_indices import fits, pick
from ..part import whole
from ..torch_transforms import is_known
from .mask import Mask

if TYPE_CHECKING:
    from torch import Tensor

    from ..block_indices import Batch
    from .mask import Interval


class Window(Mask):
    def __init__(self, size: int, center: Tensor | None, offset: int) -> None:
        whole("window's size", size)
        if size < 1:
            raise ValueError(f"window needs a size ≥ 1, got {size}")
        if center is not None:
            # In bfloat16 the positions of keys would be rounded.
            kind = torch.promote_types(center.dtype, torch.float32) if center.is_floating_point() else torch.int64
            center = center.detach().to(kind, copy=True)
        self.size, self.center, self.offset = size, center, offset

    def middle(self, batch: Batch, i: Tensor) -> Tensor:
        if self.center is None:
            return i + self.offset
        return pick(self.center[..., None].to(i.device), batch, i, torch.zeros_like(i))

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if self.center is not None and self.center.dim() == 0:
            raise ValueError("window has one center; expected one per query, [..., T_q] (or [1] for all)")
        if self.center is not None and not fits(tuple(self.center.shape), (*batch, queries)):
            raise ValueError(
                f"window has centers of shape {list(self.center.shape)}, which do not broadcast to one per query, "
                f"{[*batch, queries]}; they align with the last dimensions, as tensors do: for every head alike give "
                "[B, 1, T_q]"
            )

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        middle = self.middle(batch, i)
        return (j > middle - self.size) & (j < middle + self.size)  # without a tensor of differences i − j

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        middle = self.middle(batch, i)
        # |j − m| < n for whole j: from floor(m − n) + 1 up to ceil(m + n) − 1, for integer and fractional m.
        if middle.is_floating_point():
            start, stop = (middle - self.size).floor().long() + 1, (middle + self.size).ceil().long()
        else:
            start, stop = middle - self.size + 1, middle + self.size
        return start.clamp(0, keys), stop.clamp(0, keys)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if self.center is not None:
            return None
        # The first query sees from `first` on, the last one up to `last`, and those between see all between.
        first, last = self.offset - self.size + 1, queries - 1 + self.offset + self.size - 1
        if is_known(first <= 0) and is_known(last >= keys - 1):
            return None
        j = torch.arange(keys, device=device)
        return (j < first) | (j > last)

    def __repr__(self) -> str:
        center = "" if self.center is None else ", center=…"
        return f"window({self.size}{center}{f', offset={self.offset}' if self.offset else ''})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        if self.center is None:
            return super().example()
        *batch, queries = self.center.shape
        return tuple(batch), queries, int(self.center.max()) + self.size


def window(size: int, *, center: Tensor | None = None, offset: int = 0) -> Mask:
    """Query i sees keys closer than `size`: |j − i − offset| < size, so `causal() & window(n)` sees n keys.

    `center` [..., T_q] puts query i's window around a place of its own (Luong's local attention), whole or not.
    """
    return Window(size, center, offset)
