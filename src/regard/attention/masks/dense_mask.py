"""The dense mask: a boolean tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..block_indices import brief, check_device, fits, pick
from .mask import Mask

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

    from ..block_indices import Batch


class Dense(Mask):
    """A mask given as a boolean tensor, which is kept by reference."""

    seen: Tensor

    def __init__(self, seen: Tensor) -> None:
        if seen.dtype != torch.bool:
            raise TypeError(
                f"dense needs a boolean tensor, True where a query may see a key, got {seen.dtype}. "
                "To add numbers to the energies use Modified(energy, Bias(tensor))."
            )
        self.seen = seen

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        shape, full = tuple(self.seen.shape), (*batch, queries, keys)
        if len(shape) < 2 or not fits(shape, full):
            hint = "; to close padded keys use padding(lengths), or mask[..., None, :]" if shape[-1:] == (keys,) else ""
            raise ValueError(f"mask of shape {list(shape)} does not broadcast to [..., T_q, T_k] = {list(full)}{hint}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return pick(self.seen, batch, i, j)

    def dense(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor:
        check_device("the mask", self.seen, device)
        return self.seen

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        check_device("the mask", self.seen, device)
        return ~self.seen.any(-2)

    def __repr__(self) -> str:
        return f"dense({brief(self.seen)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        *batch, queries, keys = self.seen.shape
        return tuple(batch), queries, keys


def dense(seen: Bool[Tensor, "*batch q k"]) -> Mask:
    """A boolean tensor that broadcasts to [..., T_q, T_k]; True where a query may see a key."""
    return Dense(seen)
