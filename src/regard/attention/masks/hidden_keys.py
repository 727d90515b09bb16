"""Masked keys and values have no effect, NaN and ∞ included: 0 · NaN is NaN, so a weight of zero is not enough.

Keys that no query sees are set to zero, keys and values alike. What some queries see and others do not is left as it
is, and reported, so that each query is computed from the keys it sees alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from .mask import Mask


def clear_hidden_keys(
    mask: Mask, batch: tuple[int, ...], groups: int, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, bool]:
    """Keys and values with zeros where no query sees them, and whether NaN or ∞ is left beside a mask.

    Numbers are read for it, so this is for a CPU alone, where mostly nothing is to be done.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if mask.causal_offset is not None and mask.causal_offset >= keys - 1:
        return k, v, False  # every query sees every key
    if is_finite(k) and is_finite(v):
        return k, v, not is_finite(q)
    hidden = ~mask.dense(batch, queries, keys, q.device).expand(*batch, queries, keys).any(-2)
    k, v = (x.masked_fill(_for_keys(hidden, batch, groups, x), 0) for x in (k, v))
    return k, v, not all(map(is_finite, (q, k, v)))


def clear_named_keys(mask: Mask | None, batch: tuple[int, ...], groups: int, k: Tensor, v: Tensor) -> list[Tensor]:
    """The same without reading numbers, which a GPU would wait for: the keys that padding hides from all queries."""
    hidden = None if mask is None else mask.hidden(batch, k.shape[-2], k.device)
    return [k, v] if hidden is None else [x.masked_fill(_for_keys(hidden, batch, groups, x), 0) for x in (k, v)]


def is_finite(x: Tensor) -> bool:
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
