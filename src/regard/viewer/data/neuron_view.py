"""The Neuron view: for one query and its keys the vectors q and k, the terms of the energy, their sum, the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ...attention import Weights

MOST_KEYS = 512
"""Keys of one response."""


@torch.no_grad()
def neuron_view(weights: Weights, query: int, cols: range) -> dict[str, Any]:
    """For one head, [T_q, T_k].

    `energy` is Σ_d product_d: scale · q_d k_d for a dot product, w_d tanh(q_d + k_d) for an additive energy,
    −(q_d − k_d)² / 2 for a Gaussian. Any other function of (q, k) has no terms. `modified` is the energy after biases,
    caps and the mask, null where it is masked; `weight` is that energy normalized.
    """
    energies = weights.flat()
    n, form = weights.entries[0], energies.form
    entry, row, span = slice(n, n + 1), slice(query, query + 1), slice(cols.start, cols.stop)
    q, k = energies.a[n, query].float(), energies.b[n, span].float()  # [D], [cols, D]
    product = form.terms(q, k)
    energy = form(energies.a[entry, row], energies.b[entry, span])[0, 0] if product is None else product.sum(-1)
    modified = energies.block(entry, row, span, -torch.inf)[0, 0]
    return {
        "query": query,
        "cols": [cols.start, cols.stop],
        "q": _round(q),
        "k": _round(k),
        "kind": "function" if product is None or form.kernel is None else form.kernel,
        "scale": form.scale,
        "product": None if product is None else _round(product),
        "energy": _round(energy),
        "modified": [None if e == -torch.inf else _round(e) for e in modified.tolist()],
        "weight": _round(weights.tile(query, span)[0]),
        "normalizer": type(weights.normalize).__name__,
    }


def _round(x: Any) -> Any:
    """Seven digits, the precision of float32; for tensors and lists, too."""
    x = x.tolist() if isinstance(x, torch.Tensor) else x
    return [_round(value) for value in x] if isinstance(x, list) else float(f"{x:.7g}")
