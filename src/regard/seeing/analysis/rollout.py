"""Rollout and flow: how much of the input reaches a token through all the layers (Abnar & Zuidema 2020).

Ã_l = rows of (mean over heads of A_l + I), divided by their sums
rollout:  R_l = Ã_l R_{l−1},  R_0 = I
flow:     the most that can flow from a token of the last layer to one of the input, Ã being the capacities
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch

from .layer_stack import stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from ...attention import Weights
    from ...attention.weight_statistics import Block
    from ..capture.call import Call
    from ..capture.seen import Seen

LONGEST = 128
"""Tokens up to which flow is computed: a maximum flow for each of them, through T² edges a layer."""


class Carried:
    """Σ_i r_i w_ij, summed over heads: rows r carried one layer down. A statistic for `Weights.stats(also=…)`."""

    def __init__(self, rows: Float[Tensor, "rows q"], keys: int) -> None:
        self.rows, self.result = rows, rows.new_zeros(len(rows), keys)

    def add(self, block: Block) -> None:
        w = block.w.sum(0)  # [queries, width]
        self.result[:, : w.shape[-1]] += self.rows[:, block.rows] @ w


def rollout(seen: Seen, rows: Sequence[int] | None = None, entry: int = 0) -> Float[Tensor, "rows t"]:
    """R_L for some tokens of the last layer (all of them unless told), over the tokens of the input.

    A row is carried down layer by layer, in O(T) memory each: for a few rows any length will do.
    """
    calls = _layers(seen)
    length = calls[0].shape[-1]
    wanted = list(range(length)) if rows is None else list(rows)
    carried = torch.eye(length)[wanted] if rows is None else _ones(wanted, length)
    for call in reversed(calls):
        weights = _entry(call, entry)
        # Rows of A sum to one, or to less where there is a sink; Ã divides by that sum and the one of I.
        sums = weights.stats(on=torch.ones(length, dtype=torch.bool)).on
        assert sums is not None
        scaled = carried / (1 + sums.mean(0).cpu())
        down = Carried(scaled.to(weights.device), length)
        weights.stats(also=[down])
        carried = scaled + down.result.cpu() / weights.shape[0]
        call.forget()
    return carried


def flow(seen: Seen, row: int, entry: int = 0) -> Float[Tensor, " t"]:
    """For one token of the last layer: the maximum flow to each token of the input. Up to 128 tokens."""
    calls = _layers(seen)
    length = calls[0].shape[-1]
    if length > LONGEST:
        raise ValueError(f"flow is computed for up to {LONGEST} tokens, there are {length}; rollout has no limit")
    layers = []
    for call in reversed(calls):
        mixed = _entry(call, entry).tile(slice(None), slice(None)).mean(0).cpu() + torch.eye(length)
        layers.append((mixed / mixed.sum(-1, keepdim=True)).tolist())
    found = [_maximum(layers, range(length)[row], target, length) for target in range(length)]
    return torch.tensor(found)


def _maximum(layers: list[list[list[float]]], source: int, target: int, length: int) -> float:
    """Maximum flow from `source` above the first of these layers to `target` below the last (Edmonds & Karp 1972)."""
    # A node is layer · T + token; room[a][b] is what may still flow from a to b.
    room: dict[int, dict[int, float]] = {}
    for depth, layer in enumerate(layers):
        for i, row in enumerate(layer):
            for j, capacity in enumerate(row):
                if capacity > 0:
                    a, b = depth * length + i, (depth + 1) * length + j
                    room.setdefault(a, {})[b] = capacity
                    room.setdefault(b, {}).setdefault(a, 0.0)
    end, total = len(layers) * length + target, 0.0
    while True:
        came = {source: source}
        queue = deque([source])
        while queue and end not in came:
            at = queue.popleft()
            for there, left in room.get(at, {}).items():
                if left > 1e-9 and there not in came:
                    came[there] = at
                    queue.append(there)
        if end not in came:
            return total
        path, at = [], end
        while at != source:
            path.append((came[at], at))
            at = came[at]
        least = min(room[a][b] for a, b in path)
        for a, b in path:
            room[a][b] -= least
            room[b][a] += least
        total += least


def _layers(seen: Seen) -> list[Call]:
    calls = [call for call in seen if call.kind == "self" and call.shape[-1] == call.shape[-2]]
    if not calls or len({call.shape[-1] for call in calls}) > 1:
        lengths = sorted({call.shape[-1] for call in calls})
        raise ValueError(f"rollout goes through layers of self-attention of one length; seen were lengths {lengths}")
    return stack(calls)


def _entry(call: Call, entry: int) -> Weights:
    return call.weights[entry] if len(call.shape) > 3 else call.weights


def _ones(wanted: list[int], length: int) -> Float[Tensor, "rows t"]:
    rows = torch.zeros(len(wanted), length)
    rows[torch.arange(len(wanted)), torch.tensor(wanted)] = 1
    return rows
