"""Cells: a dimension divided into cells, for pooling a matrix to a smaller one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Cells:
    """One dimension divided into cells, for pooling: cell c covers positions `edges[c]` up to `edges[c + 1]`."""

    def __init__(self, edges: Sequence[int], device: torch.device) -> None:
        self.count, length, size = len(edges) - 1, edges[-1] - edges[0], edges[1] - edges[0]
        # Cells of one size, the last perhaps smaller, are a view of the tensor; others are gathered.
        self._size = size if list(edges[:-1]) == list(range(edges[0], edges[-1], size)) else 0
        self._missing = self.count * self._size - length  # positions by which the last is smaller
        if not self._size:
            begin, end = (torch.tensor(x, device=device)[:, None] - edges[0] for x in (edges[:-1], edges[1:]))
            reach = begin + torch.arange(int((end - begin).max()), device=device)  # [cells, largest]
            self._largest = reach.shape[1]
            self._positions = torch.minimum(reach, end - 1).flatten()  # a smaller cell repeats its last position
            self._once = reach < end

    @staticmethod
    def edges(length: int, count: int) -> list[int]:
        """Cell c of C covers ⌊cT/C⌋ up to ⌊(c+1)T/C⌋ of T positions."""
        return [cell * length // count for cell in range(count + 1)]

    @classmethod
    def blocks(cls, length: int, size: int, device: torch.device) -> Cells:
        """Cells of one size; the last may be smaller."""
        return cls([*range(0, length, size), length], device)

    def pool(self, x: Tensor, dim: Literal[-1, -2], pool: str) -> Tensor:
        """The maximum ("max") or the sum of every cell."""
        if self._size == 1:
            return x
        if self._size:
            if self._missing:
                padding = (0, self._missing) if dim == -1 else (0, 0, 0, self._missing)
                x = torch.nn.functional.pad(x, padding, value=-torch.inf if pool == "max" else 0.0)
            x = x.unflatten(dim, (self.count, self._size))
        else:
            shape = (*x.shape[:dim], self.count, self._largest, *x.shape[dim:][1:])
            x = x.flatten(0, -2) if dim == -1 else x  # a matrix: index_select is slow along the last of more dimensions
            x = x.index_select(dim, self._positions).view(shape)
            if pool != "max":
                x *= self._once if dim == -1 else self._once[..., None]
        return x.amax(dim) if pool == "max" else x.sum(dim)
