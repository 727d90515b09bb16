"""The Neuron view: for one query and its keys the vectors q and k, the terms of the energy, their sum, the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...attention.energy_forms import DotForm, TanhForm

if TYPE_CHECKING:
    from ...attention import Weights

MOST_KEYS = 512
"""Keys of one response."""


@torch.no_grad()
def neuron_view(weights: Weights, query: int, cols: range) -> dict[str, Any]:
    """For one head, [T_q, T_k].

    `energy` is Σ_d product_d: scale · q_d k_d for a dot product, w_d tanh(q_d + k_d) for an additive energy. `modified`
    is the energy after biases, caps and the mask, null where it is masked; `weight` is that energy normalized. An
    energy that is any function of (q, k) has no terms.
    """
    energies = weights.flat()
    n, form = weights.entries[0], energies.form
    entry, row, span = slice(n, n + 1), slice(query, query + 1), slice(cols.start, cols.stop)
    q, k = energies.a[n, query].float(), energies.b[n, span].float()  # [D], [cols, D]
    if isinstance(form, DotForm):
        kind, scale, product = "dot", form.scale, form.scale * q * k
    elif isinstance(form, TanhForm):
        kind, scale, product = "tanh", 1.0, form.weight.float() * torch.tanh(q + k)
    else:
        kind, scale, product = "function", 1.0, None
    energy = form(energies.a[entry, row], energies.b[entry, span])[0, 0] if product is None else product.sum(-1)
    modified = energies.block(entry, row, span, -torch.inf)[0, 0]
    return {
        "query": query,
        "cols": [cols.start, cols.stop],
        "q": _numbers(q),
        "k": _numbers(k),
        "kind": kind,
        "scale": scale,
        "product": None if product is None else _numbers(product),
        "energy": _numbers(energy),
        "modified": [None if e == -torch.inf else _round(e) for e in modified.tolist()],
        "weight": _numbers(weights.tile(query, span)[0]),
        "normalizer": type(weights.normalize).__name__,
    }


def _numbers(x: torch.Tensor) -> Any:
    return _round(x.float().cpu().tolist())


def _round(x: Any) -> Any:
    """Seven digits, the precision of float32; for lists of numbers, too."""
    return [_round(value) for value in x] if isinstance(x, list) else float(f"{x:.7g}")
