"""Kernels of our own: each a `torch.library` op with a fake kernel and a gradient, one file per device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


def has_triton(x: Tensor) -> bool:
    """Whether a Triton kernel that computes in float32 can run on this tensor."""
    if not x.is_cuda or x.dtype == torch.float64:
        return False
    try:
        import triton  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def ceil(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


class KernelArguments(NamedTuple):
    """Query i sees keys start_i ≤ j < stop_i ([n or 1, q or 1], both or neither). Dropout repeats with its seed."""

    start: Int[Tensor, "_ _"] | None
    stop: Int[Tensor, "_ _"] | None
    seed: Int[Tensor, ""] | None
    scale: float
    dropout: float

    def expand(self, n: int, q: int) -> KernelArguments:
        """One start and stop per row; what was shared stays shared, by a stride of 0."""
        if self.start is None or self.stop is None:
            return self
        return self._replace(start=self.start.expand(n, q), stop=self.stop.expand(n, q))
