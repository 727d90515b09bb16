"""The largest weights of every row on a GPU: how `top_triton` is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..statistics import Top
from .columns import ceil
from .launch import with_descriptors
from .rectangle import sizes

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .rectangle import Rectangle

TOP = 32
"""The most weights of a row that the kernel keeps in registers."""

LONG = 2048
"""From so many keys on, finding a bound first is faster."""

MARKS = 16
"""Shares of the keys whose maxima give the bound."""

FEW = 8
"""Up to so many of a row's weights, hardly more keys than these reach the bound."""

GROUP = 8
"""Keys looked at as one: the more, the less `collect` writes down, and the more dot products in `pick`."""

ROOM = 48
"""Groups a row may have: all of three blocks of keys, where attention is to a neighbourhood."""

_NOTHING = -2139095041  # −∞ in the order of floats as whole numbers


def by_marks(r: Rectangle, count: int | None) -> bool:
    return count is not None and 1 < count <= FEW and r.keys >= LONG


def no_marks(r: Rectangle) -> Int[Tensor, "n q marks"]:
    """What `walk` is to fill in."""
    return torch.full((r.count, r.queries, MARKS), _NOTHING, dtype=torch.int32, device=r.a.device)


def largest(r: Rectangle, state: Float[Tensor, "n q"], count: int, marks: Int[Tensor, "n q marks"] | None) -> Top:
    """The `count` largest weights of every row, [n, q, count], and their keys."""
    from . import top_triton

    device, slots = r.a.device, max(2, 1 << (count - 1).bit_length())
    values = torch.empty(r.count, r.queries, count, device=device)
    indices = torch.empty(r.count, r.queries, count, dtype=torch.long, device=device)
    asked = {**r.arguments(), "state": state, "count": count}
    answer = {"values": values, "indices": indices, "SLOTS": slots, "POWER": r.power}
    taken = r.place
    if marks is not None:
        taken = torch.zeros(r.count, r.queries, dtype=torch.int32, device=device)
        found = torch.empty(r.count, r.queries, ROOM, dtype=torch.int32, device=device)
        cut = sizes(r, "collect")
        left = {"taken": taken, "found": found, "ROOM": ROOM, "GROUP": GROUP}
        options = {**asked, **left, **r.precision(), **cut.options(), "marks": marks, "MARKS": marks.shape[-1]}
        collect = top_triton.collect[(ceil(r.queries, cut.queries), r.count)]
        with_descriptors(device, lambda: collect(**options, BULK=r.bulk(r.b)))
        top_triton.pick[(ceil(r.queries, 8), r.count)](
            **asked, **left, **answer, APART=cut.keys // GROUP, BM=8, num_warps=4
        )
    cut = sizes(r, "top")
    rest = {"REST": marks is not None, "ROOM": ROOM, "taken": taken}
    top_triton.top[(ceil(r.queries, cut.queries), r.count)](**asked, **answer, **rest, **r.precision(), **cut.options())
    return Top(values, indices)
