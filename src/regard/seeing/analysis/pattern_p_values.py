"""A randomization test: how often random keys get at least as much weight as the keys of a pattern.

On some queries of a text, the pattern's keys are replaced by as many keys drawn uniformly from those the query can
see, `DRAWS` times; p = (1 + draws with at least the pattern's weight) / (1 + draws).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..capture.call_inputs_and_output import CLOSED
from ..capture.computed_weights import Unchanged

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ...attention import Weights

DRAWS = 99
ROWS = 64
"""Queries of a text that are tested, evenly spaced."""


def random_key_sums(
    weights: Weights,
    queries: Int[Tensor, " rows"],
    patterns: dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]],
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "n draws_1"]]:
    """For each pattern the sum of its weights on these queries, then that of `DRAWS` random choices of as many keys.

    `weights` are [heads, T_q, T_k]; a pattern is a list of pairs (index into `queries`, key).
    """
    keys, visible = weights.shape[-1], visible_keys(weights, queries)
    count = visible.sum(-1)
    listed, begin = visible.nonzero()[:, 1], count.cumsum(0) - count  # the keys each row sees, row after row
    sums: dict[str, list[Tensor]] = {name: [] for name in patterns}
    picks = {}
    for name, (row, key) in patterns.items():
        inside = visible[row, key]
        row, key = row[inside], key[inside]
        which = (torch.rand(DRAWS, len(row), generator=generator) * count[row]).long().clamp_max(count[row] - 1)
        # The pattern's own keys first, then the draws: [1 + DRAWS, pairs], as indices into the flattened rows.
        picks[name] = (row * keys + torch.cat([key[None], listed[begin[row] + which]])).to(weights.device)
    part = weights.rows(queries.tolist())
    for head in range(weights.shape[0]):  # one head's rows at a time: at 100k tokens they are 26 MB
        tile = part[head].tile(slice(None), slice(None)).flatten()
        for name, at in picks.items():
            sums[name].append(tile[at].sum(-1).cpu())
    return {name: torch.stack(values) for name, values in sums.items()}


@torch.no_grad()
def visible_keys(weights: Weights, queries: Int[Tensor, " rows"]) -> Bool[Tensor, "rows k"]:
    """The keys these queries can see in the first head; all heads of one entry have the same mask."""
    if isinstance(weights.normalize, Unchanged):  # weights without their mask: a softmax gives a closed key nothing
        return (weights.rows(queries.tolist())[0].tile(slice(None), slice(None)) > 0).cpu()
    scores, device = weights.energies, weights.device
    only = replace(scores, modifiers=tuple(x for x in scores.modifiers if x.added is not None))
    rows, cols = queries.to(device), torch.arange(scores.keys, device=device)
    e = torch.zeros(1, len(rows), len(cols), dtype=scores.precision, device=device)
    first = torch.tensor([weights.entries[0]], device=device)
    return (only.finished(e, first, rows, cols, -torch.inf)[0] > CLOSED).cpu()


def p_values(sums: Float[Tensor, "*heads draws_1"]) -> Float[Tensor, " *heads"]:
    """p values from the sums of `random_key_sums`, added over texts."""
    own, draws = sums[..., :1], sums[..., 1:]
    return (1 + (draws >= own).sum(-1)) / (1 + draws.shape[-1])
