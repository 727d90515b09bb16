"""Spread: some places of a text, evenly spread over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


def spread(length: int, rows: int) -> Int[Tensor, " rows"]:
    """So many places of so long a text, or all of them; the first and the last are among them."""
    count = min(rows, length)
    # In whole numbers, and on the CPU: what the default dtype and device are is no business of a place in a text.
    return torch.tensor([n * (length - 1) // max(count - 1, 1) for n in range(count)], dtype=torch.int64, device="cpu")
