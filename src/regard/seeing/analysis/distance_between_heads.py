"""Distances between heads, and a map in the plane where similar heads lie close together.

    JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2

is the Jensen–Shannon divergence of two heads' rows, averaged over queries (Clark et al. 2019, section 6, who sum), with
their smoothing of rows: 0.999 p + 0.001 / T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..capture.call_inputs_and_output import evenly_spaced
from .layer_stack import entry_weights, layer_stack

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..capture.recorded_calls import Seen

ROWS = 64
"""Queries compared, evenly spaced over the text."""


def head_distances(seen: Seen, entry: int = 0, rows: int = ROWS) -> Float[Tensor, "heads heads"]:
    """The distance between all heads of all self-attention layers, ordered by layer, then head."""
    calls = layer_stack([call for call in seen if call.kind == "self"])
    if not calls or len({call.shape[-2:] for call in calls}) > 1:
        raise ValueError("heads are compared over one text: the self-attention layers must all have one length")
    queries, keys = calls[0].shape[-2:]
    sample = evenly_spaced(queries, rows).tolist()
    total: Tensor | None = None
    for query in sample:  # one row of every head at once: [all heads, keys]
        parts = [entry_weights(call, entry).tile(query, slice(None)).squeeze(-2).float().cpu() for call in calls]
        divergence = _jensen_shannon(0.999 * torch.cat(parts) + 0.001 / keys)
        total = divergence if total is None else total + divergence
    assert total is not None
    return total / len(sample)


def _jensen_shannon(p: Float[Tensor, "heads t"]) -> Float[Tensor, "heads heads"]:
    def entropy(x: Tensor) -> Tensor:
        return -torch.special.xlogy(x, x).sum(-1)  # type: ignore[no-any-return]

    own = entropy(p)
    mixed = torch.stack([entropy((p + row) / 2) for row in p])  # one head at a time: [heads, t], not [heads, heads, t]
    return (mixed - (own[:, None] + own) / 2).clamp_min(0).fill_diagonal_(0)


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
