"""The causal mask: query i sees keys j ≤ i + offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from ..block_indices import brief, grid
from ..part import whole
from ..torch_transforms import is_known
from .leading_dimensions import check_leading, leading_entries, without_queries
from .mask import Mask

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ..block_indices import Batch
    from .mask import Interval

CORNERS = "top-left", "bottom-right"


class Causal(Mask):
    starts_at_first = True

    def __init__(self, offset: int | str | Tensor) -> None:
        if isinstance(offset, str):
            if offset not in CORNERS:
                raise ValueError(f'causal takes "top-left", "bottom-right" or an offset, got {offset!r}')
        elif isinstance(offset, torch.Tensor):
            if offset.is_floating_point() or offset.dtype == torch.bool:
                raise TypeError(f"causal needs whole offsets, got a tensor of {offset.dtype}")
            offset = offset.to(torch.int64, copy=True)
        else:
            whole("causal's offset", offset)
            self.causal_offset = offset
        self.offset = offset

    def resolve(self, queries: int | Tensor, keys: int | Tensor) -> Mask:
        if isinstance(self.offset, str):
            return Causal(0 if self.offset == "top-left" else keys - queries)
        return self

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if isinstance(self.offset, torch.Tensor):
            check_leading("causal has offsets", tuple(self.offset.shape), batch)

    def _last(self, batch: Batch, i: Tensor) -> Tensor:
        """The last key that each query sees."""
        if isinstance(self.offset, str):
            raise ValueError(f"{self!r} depends on the numbers of queries and keys; call resolve(queries, keys) first")
        return i + (leading_entries(self.offset, batch) if isinstance(self.offset, torch.Tensor) else self.offset)

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j <= self._last(batch, i)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = (self._last(batch, i) + 1).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if not isinstance(self.offset, torch.Tensor | str) and is_known(queries + self.offset >= keys):
            return None
        last = self._last(grid(batch, 0, 0, device)[0], torch.full((1, 1), 1, device=device) * (queries - 1))
        return without_queries(torch.arange(keys, device=device) > last)

    def __repr__(self) -> str:
        if isinstance(self.offset, torch.Tensor):
            return f"causal({brief(self.offset)})"
        return f"causal({self.offset!r})" if self.offset else "causal()"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        if isinstance(self.offset, torch.Tensor):
            return tuple(self.offset.shape), 8, 8
        return ((), 5, 8) if self.offset == "bottom-right" else super().example()


def causal(offset: int | Literal["top-left", "bottom-right"] | list[int] | Int[Tensor, " *batch"] = 0) -> Mask:
    """Query i sees keys j ≤ i + offset.

    "bottom-right" is the offset T_k − T_q, by which the last query sees the last key (a key/value cache); "top-left" is
    0. Offsets `[B]` belong to the first leading dimension.
    """
    return Causal(torch.tensor(offset) if isinstance(offset, list) else offset)
