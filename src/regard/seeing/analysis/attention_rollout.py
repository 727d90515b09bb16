"""Attention rollout and attention flow: how much of the input reaches a token through all layers.

Abnar & Zuidema 2020:

Ã_l = rows of (mean over heads of A_l + I), divided by their sums
rollout:  R_l = Ã_l R_{l−1},  R_0 = I
flow:     the maximum flow from a token of the last layer to a token of the input, with capacities Ã
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch

from .layer_stack import entry_weights, layer_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from ...attention.weights.weight_statistics import Block
    from ..capture.attention_call import Call
    from ..capture.recorded_calls import Seen

MAX_FLOW_TOKENS = 128
"""Flow takes one maximum-flow computation per token, over T² edges per layer."""


class RowProducts:
    """Σ_i r_i w_ij, summed over heads, for chosen rows r: a statistic for `Weights.stats(also=…)`."""

    def __init__(self, rows: Float[Tensor, "rows q"], keys: int) -> None:
        self.rows, self.result = rows, rows.new_zeros(len(rows), keys)

    def add(self, block: Block) -> None:
        w = block.w.sum(0)  # [queries, width]
        self.result[:, : w.shape[-1]] += self.rows[:, block.rows] @ w


def rollout(seen: Seen, rows: Sequence[int] | None = None, entry: int = 0) -> Float[Tensor, "rows t"]:
    """R_L for some tokens of the last layer (all by default), over the tokens of the input.

    Each row is multiplied by one layer after another in O(T) memory, so a few rows are possible at any length.
    """
    calls = _self_attention(seen)
    length = calls[0].shape[-1]
    chosen = torch.arange(length) if rows is None else torch.tensor(list(rows))
    product = torch.zeros(len(chosen), length)
    product[torch.arange(len(chosen)), chosen] = 1
    for call in reversed(calls):
        weights = entry_weights(call, entry)
        # Rows of A sum to one, or less if there is a sink; Ã divides by that sum and the one of I.
        sums = weights.stats(on=torch.ones(length, dtype=torch.bool)).on
        assert sums is not None
        scaled = product / (1 + sums.mean(0).cpu())
        attended = RowProducts(scaled.to(weights.device), length)
        weights.stats(also=[attended])
        product = scaled + attended.result.cpu() / weights.shape[0]
        call.forget()
    return product


def flow(seen: Seen, row: int, entry: int = 0) -> Float[Tensor, " t"]:
    """The maximum flow from one token of the last layer to each token of the input. Up to 128 tokens."""
    calls = _self_attention(seen)
    length = calls[0].shape[-1]
    if length > MAX_FLOW_TOKENS:
        raise ValueError(
            f"flow is computed for up to {MAX_FLOW_TOKENS} tokens, there are {length}; rollout has no limit"
        )
    layers = []
    for call in reversed(calls):
        mixed = entry_weights(call, entry).tile(slice(None), slice(None)).mean(0).cpu() + torch.eye(length)
        layers.append((mixed / mixed.sum(-1, keepdim=True)).tolist())
    return torch.tensor([_maximum_flow(layers, range(length)[row], target, length) for target in range(length)])


def _maximum_flow(layers: list[list[list[float]]], source: int, target: int, length: int) -> float:
    """Maximum flow from `source` above the first of these layers to `target` below the last (Edmonds & Karp 1972)."""
    # A node is layer · T + token; residual[a][b] is the remaining capacity from a to b.
    residual: dict[int, dict[int, float]] = {}
    for depth, layer in enumerate(layers):
        for i, row in enumerate(layer):
            for j, capacity in enumerate(row):
                if capacity > 0:
                    a, b = depth * length + i, (depth + 1) * length + j
                    residual.setdefault(a, {})[b] = capacity
                    residual.setdefault(b, {}).setdefault(a, 0.0)
    sink, total = len(layers) * length + target, 0.0
    while True:
        parents = {source: source}
        queue = deque([source])
        while queue and sink not in parents:
            node = queue.popleft()
            for neighbour, capacity in residual.get(node, {}).items():
                if capacity > 1e-9 and neighbour not in parents:
                    parents[neighbour] = node
                    queue.append(neighbour)
        if sink not in parents:
            return total
        path, node = [], sink
        while node != source:
            path.append((parents[node], node))
            node = parents[node]
        amount = min(residual[a][b] for a, b in path)
        for a, b in path:
            residual[a][b] -= amount
            residual[b][a] += amount
        total += amount


def _self_attention(seen: Seen) -> list[Call]:
    calls = [call for call in seen if call.kind == "self" and call.shape[-1] == call.shape[-2]]
    if not calls or len({call.shape[-1] for call in calls}) > 1:
        lengths = sorted({call.shape[-1] for call in calls})
        raise ValueError(f"rollout takes self-attention layers of one length; the lengths seen are {lengths}")
    return layer_stack(calls)
