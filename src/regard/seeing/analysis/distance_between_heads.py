"""Distances between heads, and a map in the plane where similar heads lie close together.

    JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2

is the Jensen–Shannon divergence of two heads' rows, averaged over queries (Clark et al. 2019, section 6, who sum), with
their smoothing of rows: 0.999 p + 0.001 / T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..capture.call_inputs_and_output import evenly_spaced
from ..result_table import ResultTable
from .layer_stack import entry_weights, layer_stack

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..capture.attention_call import Call
    from ..capture.recorded_calls import Seen

ROWS = 64
"""Queries compared, evenly spaced over the text."""


def head_distances(
    seen: Seen, entry: int = 0, rows: int = ROWS, *, other: Seen | None = None
) -> Float[Tensor, "heads others"]:
    """The distance between all heads of all self-attention layers, ordered by layer, then head.

    With `other`, between the heads of two runs on the same tokens: of two models, or two checkpoints of one.
    """
    if rows < 1:
        raise ValueError(f"rows is the number of queries to compare, at least 1, got {rows}")
    sides = [_self_attention(each) for each in ([seen] if other is None else [seen, other])]
    lengths = {call.shape[-2:] for calls in sides for call in calls}
    if not all(sides):
        raise ValueError("there are no heads to compare: a run has no self-attention")
    if len(lengths) > 1:
        found = " and ".join(f"{queries} × {keys}" for queries, keys in sorted(lengths))
        raise ValueError(f"heads are compared over one text: all self-attention must have one length, got {found}")
    ((queries, keys),) = lengths
    sample = evenly_spaced(queries, rows).tolist()
    total: Tensor | None = None
    for query in sample:  # one row of every head at once: [all heads, keys]
        p, *more = (0.999 * _row(calls, entry, query) + 0.001 / keys for calls in sides)
        divergence = _jensen_shannon(p, *more) if more else _jensen_shannon(p, p).fill_diagonal_(0)
        total = divergence if total is None else total + divergence
    assert total is not None
    return total / len(sample)


def head_matches(seen: Seen, other: Seen, entry: int = 0, rows: int = ROWS) -> ResultTable:
    """For each head of a run the nearest head of another run on the same tokens: two models, or two checkpoints.

    `mutual` says whether the two are each other's nearest; `same place` is the distance to the head of the same layer
    and number, None where there is none.
    """
    distances = head_distances(seen, entry, rows, other=other)
    mine, theirs = (_places(_self_attention(each)) for each in (seen, other))
    nearest, back = distances.argmin(1).tolist(), distances.argmin(0).tolist()
    at = {place: number for number, place in enumerate(theirs)}
    return ResultTable(
        {
            "layer": [layer for layer, _ in mine],
            "head": [head for _, head in mine],
            "other layer": [theirs[n][0] for n in nearest],
            "other head": [theirs[n][1] for n in nearest],
            "distance": [float(distances[n, m]) for n, m in enumerate(nearest)],
            "mutual": [back[m] == n for n, m in enumerate(nearest)],
            "same place": [float(distances[n, at[place]]) if place in at else None for n, place in enumerate(mine)],
        }
    )


def _self_attention(seen: Seen) -> list[Call]:
    return layer_stack([call for call in seen if call.kind == "self"])


def _places(calls: list[Call]) -> list[tuple[int, int]]:
    """(layer, head) of all heads, in the order of the distances."""
    return [(layer, head) for layer, call in enumerate(calls) for head in range(call.heads)]


def _row(calls: list[Call], entry: int, query: int) -> Float[Tensor, "heads t"]:
    parts = [entry_weights(call, entry).tile(query, slice(None)).squeeze(-2).float().cpu() for call in calls]
    return torch.cat(parts)


def _jensen_shannon(p: Float[Tensor, "heads t"], q: Float[Tensor, "others t"]) -> Float[Tensor, "heads others"]:
    def entropy(x: Tensor) -> Tensor:
        return -torch.special.xlogy(x, x).sum(-1)  # type: ignore[no-any-return]

    # One head at a time: [others, t], not [heads, others, t].
    mixed = torch.stack([entropy((q + row) / 2) for row in p])
    return (mixed - (entropy(p)[:, None] + entropy(q)) / 2).clamp_min(0)


def classical_scaling(distances: Float[Tensor, "heads heads"]) -> Float[Tensor, "heads 2"]:
    """Points in the plane whose distances approximate these: classical multidimensional scaling (Torgerson 1952)."""
    d = distances.double()
    n = len(d)
    centre = torch.eye(n, dtype=d.dtype) - 1 / n
    values, vectors = torch.linalg.eigh(-0.5 * centre @ d.square() @ centre)
    points = vectors[:, -2:].flip(-1) * values[-2:].flip(-1).clamp_min(0).sqrt()
    # The sign of an eigenvector is arbitrary: make the largest coordinate positive, so that maps are reproducible.
    signs = points.gather(0, points.abs().argmax(0, keepdim=True)).sign()
    oriented: Tensor = points * torch.where(signs == 0, 1, signs)
    return oriented.float()
