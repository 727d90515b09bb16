"""Kernels of our own, a file for each device; what `torch.compile` keeps is a `torch.library` op."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

TRITON = find_spec("triton") is not None  # found, not imported


def has_triton(x: Tensor) -> bool:
    """Whether a Triton kernel that computes in float32 can run on this tensor."""
    return TRITON and x.is_cuda and x.dtype != torch.float64


def ceil(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)
