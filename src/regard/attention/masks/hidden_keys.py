"""Masked keys and values have no effect, NaN and ∞ included: 0 · NaN is NaN, so a weight of zero is not enough.

Keys that no query sees are set to zero, keys and values alike. What some queries see and others do not is left as it
is. Where numbers can be read (a CPU), it is reported, and each query is computed from the keys it sees alone. Elsewhere
products are taken of finite parts, and NaN and ∞ are given to the queries that see them (`guarded_average`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..torch_transforms import forward_mode

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


def clear_named_keys(
    mask: Mask, batch: tuple[int, ...], groups: int, queries: int, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """The same without reading numbers, which a GPU would wait for: the keys that `mask.hidden` names.

    It costs O(T) for a rule about positions or lengths, and one pass over the mask for a boolean tensor.
    """
    hidden = mask.hidden(batch, queries, k.shape[-2], k.device)
    if hidden is None:
        return k, v
    k, v = (x.masked_fill(_for_keys(hidden, batch, groups, x), 0) for x in (k, v))
    return k, v


def guarded_average(
    w: Float[Tensor, "*batch q k"], v: Float[Tensor, "*batch k d"], seen: Bool[Tensor, "..."], signed: bool
) -> Float[Tensor, "*batch q d"]:
    """w v where NaN and ∞ reach the queries that see them, and no others; `signed` weights may be negative.

    The product of finite parts, and another one of the mask that counts what each query sees of the rest.
    """
    seen = torch.atleast_2d(seen)
    rest = v.detach()
    above, below = ((rest == x) | rest.isnan() for x in (torch.inf, -torch.inf))
    if signed:
        above = below = above | below
    count = seen.to(v.dtype) @ torch.cat([above, below], dim=-1).to(v.dtype)  # [..., q or 1, 2 d]
    up, down = (torch.where(x > 0, torch.inf, 0.0).to(v.dtype) for x in count.chunk(2, dim=-1))
    return w.masked_fill(~seen, 0) @ finite_part(v) + up - down


def finite_part(x: Tensor) -> Tensor:
    """x with zeros for NaN and ∞. Its gradient is passed on as it is, to these entries too."""
    return torch.nan_to_num(x, 0.0, 0.0, 0.0) if forward_mode() else _FinitePart.apply(x)


class _FinitePart(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.nan_to_num(x, 0.0, 0.0, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


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
