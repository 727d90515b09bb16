"""Neuron: how one query meets its keys, number by number: q, k, the terms of their energy, the sum, the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...attention.energy_forms import DotForm, TanhForm

if TYPE_CHECKING:
    from ...attention import Weights

WIDEST = 512
"""Keys of one answer."""


@torch.no_grad()
def neuron(weights: Weights, query: int, cols: range) -> dict[str, Any]:
    """Of one head, [T_q, T_k].

    `energy` is Σ_d product_d: scale · q_d k_d of a dot product, w_d tanh(q_d + k_d) of an additive energy. `modified`
    is the energy after biases, caps and the mask, null where the mask closes it; `weight` is what the normalizer makes
    of it. An energy that is any function of (q, k) has no terms.
    """
    scores = weights.flat()
    n, form = weights.entries[0], scores.form
    q, k = scores.a[n, query].float(), scores.b[n, cols.start : cols.stop].float()  # [D], [cols, D]
    told: dict[str, Any] = {"query": query, "cols": [cols.start, cols.stop], "q": _numbers(q), "k": _numbers(k)}
    one, some = slice(query, query + 1), slice(cols.start, cols.stop)
    if isinstance(form, DotForm):
        product = form.scale * q * k
        told |= {"kind": "dot", "scale": form.scale, "product": _numbers(product), "energy": _numbers(product.sum(-1))}
    elif isinstance(form, TanhForm):
        product = form.weight.float() * torch.tanh(q + k)
        told |= {"kind": "tanh", "scale": 1.0, "product": _numbers(product), "energy": _numbers(product.sum(-1))}
    else:
        energy = form(scores.a[n : n + 1, one], scores.b[n : n + 1, some])[0, 0]
        told |= {"kind": "function", "scale": 1.0, "product": None, "energy": _numbers(energy)}
    modified = scores.block(slice(n, n + 1), one, some, -torch.inf)[0, 0]
    told["modified"] = [None if e == -torch.inf else _short(e) for e in modified.tolist()]
    told["weight"] = _numbers(weights.tile(query, some)[0])
    told["normalizer"] = type(weights.normalize).__name__
    return told


def _numbers(x: torch.Tensor) -> Any:
    return _rounded(x.float().cpu().tolist())


def _rounded(x: Any) -> Any:
    return [_rounded(one) for one in x] if isinstance(x, list) else _short(x)


def _short(x: float) -> float:
    """Seven digits: what a float32 holds."""
    return float(f"{x:.7g}")
