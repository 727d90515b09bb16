"""Chance: how often keys drawn at random would get as much weight as a pattern's keys do.

A randomisation test. On some queries of a text the pattern's keys are replaced by as many keys drawn uniformly from
those the query can see, `DRAWS` times; p = (1 + draws with at least the pattern's weight) / (1 + draws).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..attention.masks import interval

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention import Weights

DRAWS = 99
ROWS = 64
"""Queries a text is tested on, evenly spread."""


def spread(length: int, rows: int = ROWS) -> Int[Tensor, " rows"]:
    """So many queries, evenly spread over a text."""
    return torch.linspace(0, length - 1, min(rows, length)).long().unique(sorted=True)  # type: ignore[no-any-return]


def drawn(
    weights: Weights,
    queries: Int[Tensor, " rows"],
    patterns: dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]],
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "n draws_1"]]:
    """For each pattern its weight on these queries, then that of `DRAWS` random choices of as many keys.

    `weights` are [heads, T_q, T_k]; a pattern is (which of `queries`, key), pair by pair.
    """
    scores, keys = weights._scores, weights.shape[-1]
    start, stop = torch.zeros(len(queries), dtype=torch.long), torch.full((len(queries),), keys)
    if scores.mask is not None:
        device = scores.a.device
        first = torch.tensor([weights._entries[0]], device=device)  # heads of one entry see the same keys
        found = interval(scores.mask, first, queries.to(device), scores)
        if found is not None:
            start, stop = (x[0].expand(len(queries)).cpu() for x in found)
    sums: dict[str, list[Tensor]] = {name: [] for name in patterns}
    picks = {}
    for name, (row, key) in patterns.items():
        inside = (key >= start[row]) & (key < stop[row])
        row, key = row[inside], key[inside]
        chosen = torch.rand(DRAWS, len(row), generator=generator) * (stop - start)[row] + start[row]
        # The pattern's own keys first, then the draws: [1 + DRAWS, pairs], as places in the flattened rows.
        picks[name] = row * keys + torch.cat([key[None], chosen.long().clamp_max(keys - 1)])
    part = weights.rows(queries.tolist())
    for head in range(weights.shape[0]):  # one head's rows at a time: at 100k tokens they are 26 MB
        tile = part[head].tile(slice(None), slice(None)).flatten().cpu()
        for name, at in picks.items():
            sums[name].append(tile[at].sum(-1))
    return {name: torch.stack(values) for name, values in sums.items()}


def p_values(sums: Float[Tensor, "*heads draws_1"]) -> Float[Tensor, " *heads"]:
    """From the sums of `drawn`, added over texts where there are several."""
    own, draws = sums[..., :1], sums[..., 1:]
    return (1 + (draws >= own).sum(-1)) / (1 + draws.shape[-1])
