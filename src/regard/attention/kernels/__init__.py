"""Kernels nobody ships: each a `torch.library` op with a fake kernel and a gradient, one file per device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
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
