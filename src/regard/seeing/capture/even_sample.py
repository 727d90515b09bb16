"""Evenly spaced positions of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


def evenly_spaced(length: int, count: int) -> Int[Tensor, " count"]:
    """At most `count` of `length` positions, the first and the last included."""
    count = min(count, length)
    # Integers on the CPU, whatever the default dtype and device are.
    return torch.tensor([n * (length - 1) // max(count - 1, 1) for n in range(count)], dtype=torch.int64, device="cpu")
