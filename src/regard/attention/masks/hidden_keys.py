"""Keys that no query sees are set to zero, and their values: 0 · NaN is NaN, so a weight of zero is not enough."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..torch_transforms import readable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from .mask import Mask


def clear_hidden_keys(
    mask: Mask, batch: tuple[int, ...], groups: int, queries: int, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros where `mask.hidden` says that no query sees them.

    Where numbers can be read without waiting for a GPU and all are finite, they stay as they are: nothing would change.
    """
    if k.device.type == "cpu" and readable(k) and _is_finite(k) and _is_finite(v):
        return k, v
    hidden = mask.hidden(batch, queries, k.shape[-2], k.device)
    if hidden is None:
        return k, v
    k, v = (x.masked_fill(_for_keys(hidden, batch, groups, x), 0) for x in (k, v))
    return k, v


def _is_finite(x: Tensor) -> bool:
    # One pass without a copy; a sum that overflows is checked again.
    total = x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32))
    return math.isfinite(float(total)) or bool(x.isfinite().all())


def _for_keys(
    hidden: Bool[Tensor, "*batch k"], batch: tuple[int, ...], groups: int, x: Float[Tensor, "*batch_k k d"]
) -> Bool[Tensor, "*batch_k k 1"]:
    """Keys that are hidden in every matrix that has them: leading dimensions of keys may be broadcast or shared."""
    hidden = hidden.expand(*batch, hidden.shape[-1])
    if groups > 1:
        hidden = hidden.unflatten(-2, (-1, groups)).all(-2)
    lead = x.shape[:-2]
    for _ in range(len(batch) - len(lead)):
        hidden = hidden.all(0)
    for at, size in enumerate(lead):
        if size == 1:
            hidden = hidden.all(at, keepdim=True)
    return hidden[..., None]
