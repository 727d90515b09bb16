"""Distance between heads: how differently they attend, and a map on which like heads lie together.

    JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2

the Jensen–Shannon divergence of two heads' rows, averaged over queries (Clark et al. 2019, section 6, who sum), with
rows smoothed as theirs: 0.999 p + 0.001 / T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .even_sample import spread
from .layer_stack import stack

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..capture.seen import Seen

ROWS = 64
"""Queries compared, evenly spread over the text."""


def distances(seen: Seen, entry: int = 0, rows: int = ROWS) -> Float[Tensor, "heads heads"]:
    """Every head of every layer of self-attention against every other, layer by layer in order."""
    calls = stack([call for call in seen if call.kind == "self"])
    if not calls or len({call.shape[-2:] for call in calls}) > 1:
        raise ValueError("heads are compared over one text: layers of self-attention of one length were expected")
    queries, keys = calls[0].shape[-2:]
    chosen = spread(queries, rows).tolist()
    total: Tensor | None = None
    for query in chosen:  # a row of every head at once: [all heads, keys]
        parts = []
        for call in calls:
            weights = call.weights[entry] if len(call.shape) > 3 else call.weights
            parts.append(weights.tile(query, slice(None)).squeeze(-2).float().cpu())
        found = _divergence(0.999 * torch.cat(parts) + 0.001 / keys)
        total = found if total is None else total + found
    assert total is not None
    return total / len(chosen)


def _divergence(p: Float[Tensor, "heads t"]) -> Float[Tensor, "heads heads"]:
    def entropy(x: Tensor) -> Tensor:
        found: Tensor = -torch.special.xlogy(x, x).sum(-1)
        return found

    own = entropy(p)
    mixed = torch.stack([entropy((p + one) / 2) for one in p])  # one head at a time: [heads, t], not [heads, heads, t]
    found: Tensor = (mixed - (own[:, None] + own) / 2).clamp_min(0).fill_diagonal_(0)
    return found


def plane(distances: Float[Tensor, "heads heads"]) -> Float[Tensor, "heads 2"]:
    """Points in the plane whose distances are as near to these as can be: classical scaling (Torgerson 1952)."""
    d = distances.double()
    n = len(d)
    centre = torch.eye(n, dtype=d.dtype) - 1 / n
    values, vectors = torch.linalg.eigh(-0.5 * centre @ d.square() @ centre)
    found = vectors[:, -2:].flip(-1) * values[-2:].flip(-1).clamp_min(0).sqrt()
    # An eigenvector's sign is nobody's choice: the largest coordinate is made positive, so that maps repeat.
    signs = found.gather(0, found.abs().argmax(0, keepdim=True)).sign()
    turned: Tensor = found * torch.where(signs == 0, 1, signs)
    return turned.float()
