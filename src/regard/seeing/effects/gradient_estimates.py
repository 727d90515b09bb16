"""Estimates of effects from one backward pass: Σ g · (new − old), with g the gradient of the metric by an output.

This is attribution patching (Nanda 2023, Syed et al. 2023). It is exact if the metric is linear in that output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from .row_replacement import EmbeddingHook, RecordedOutput, Site


def gradient_estimates(
    metric: Float[Tensor, " b"],
    sites: list[Site],
    records: Sequence[RecordedOutput],
    outputs: Sequence[Tensor | None],
    embedding: EmbeddingHook,
    embeddings: Tensor | None,
) -> Float[Tensor, "sites b"]:
    """The estimate of every site, from a metric with its graph.

    `outputs` replace those of the `records`, zeros where None; `embeddings` replace those that `embedding` recorded.
    """
    if embeddings is not None:
        assert embedding.output is not None
        (g,) = torch.autograd.grad(metric.sum(), [embedding.output])
        products = g.double() * (embeddings - embedding.output.detach()).double()
        return products.sum(-1).T.cpu()
    gradients = torch.autograd.grad(metric.sum(), [x.tensor for x in records], allow_unused=True)
    layers = []
    for record, gradient, new in zip(records, gradients, outputs, strict=True):
        old = record.by_heads
        # The metric may not depend on a call at all.
        g = torch.zeros_like(old) if gradient is None else record.arranged(gradient)
        change = -old if new is None else new - old
        layers.append((g.double() * change.double()).flatten(2).sum(-1).cpu())  # [B, heads]
    estimates = []
    for site in sites:
        assert site.layer is not None
        layer = layers[site.layer]
        estimates.append(layer.sum(1) if site.head is None else layer[:, site.head])
    return torch.stack(estimates)
