"""Masks by position: causal and window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..block_indices import fits, pick
from ..number_checks import whole
from .mask import Mask

if TYPE_CHECKING:
    from torch import Tensor

    from ..block_indices import Batch
    from .mask import Interval


class Causal(Mask):
    starts_at_first = True

    def __init__(self, offset: int) -> None:
        whole("causal's offset", offset)
        self.offset = self.causal_offset = offset

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j <= i + self.offset

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        return torch.zeros_like(i), (i + self.offset + 1).clamp(0, keys)

    def __repr__(self) -> str:
        return f"causal({self.offset})" if self.offset else "causal()"


def causal(offset: int = 0) -> Mask:
    """Query i sees keys j ≤ i + offset. With a key/value cache, offset = T_k − T_q lines up the ends."""
    return Causal(offset)


class Window(Mask):
    def __init__(self, size: int, center: Tensor | None, offset: int) -> None:
        whole("window's size", size)
        if size < 1:
            raise ValueError(f"window needs a size ≥ 1, got {size}")
        if center is not None:
            # In bfloat16 the places of keys themselves would be rounded.
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
                f"{[*batch, queries]}"
            )

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return (j - self.middle(batch, i)).abs() < self.size

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        middle = self.middle(batch, i)
        # |j − m| < n for whole j: from floor(m − n) + 1 up to ceil(m + n) − 1, both for whole and broken centers.
        if middle.is_floating_point():
            start, stop = (middle - self.size).floor().long() + 1, (middle + self.size).ceil().long()
        else:
            start, stop = middle - self.size + 1, middle + self.size
        return start.clamp(0, keys), stop.clamp(0, keys)

    def __repr__(self) -> str:
        return f"window({self.size}{'' if self.center is None else ', center=…'})"

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
