"""The mean effects of heads or layers over the texts of a corpus, from sums that merge exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..effects.effect_table import Effects
from ..effects.row_replacement import Site

if TYPE_CHECKING:
    from .exact_sums import ExactSums

BASE = ("metric",)
DIGITS = 6
"""Of numbers in names, which are sorted as text."""


def add_effects(sums: ExactSums, effects: Effects) -> None:
    """Add the effects of one text, its mean over the batch."""
    sums.add(BASE, effects.base.mean())
    for site, value in zip(effects.sites, effects.values.mean(1), strict=True):
        if site.layer is None:
            raise ValueError("effects of tokens have no mean over texts: a token's place means something else in each")
        head = "" if site.head is None else f"{site.head:0{DIGITS}d}"
        sums.add(("site", f"{site.layer:0{DIGITS}d}", head, site.module), value)


def mean_effects(sums: ExactSums, by: str) -> Effects:
    """The mean of each site's metric over the texts, as the effects of one entry."""
    names = sorted(name for name in sums.names if name[0] == "site")
    sites = [Site(int(layer), int(head) if head else None, None, module) for _, layer, head, module in names]
    values = torch.stack([sums.mean(name) for name in names])
    of = "layers" if sites[0].head is None else "heads"
    return Effects(of, by, sites, sums.mean(BASE)[None], values[:, None])
