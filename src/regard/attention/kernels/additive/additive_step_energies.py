"""The additive energy for a recurrent loop: a few queries per step, the same keys at every step.

    e_ij = w · tanh(q_i + k_j)

`attend` returns the gradient of the keys at every call. A loop of T steps would write and add T of them, so here each
step adds to sums that the loop keeps, and the caller returns them once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...torch_transforms import exact
from .. import has_triton

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def step_energies(
    q: Float[Tensor, "batch queries d"], keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]
) -> tuple[Float[Tensor, "batch queries places"], Float[Tensor, "batch queries places d"] | None]:
    """The energies, and tanh(q_i + k_j) where the backward pass can use it; None where a kernel computes it again."""
    if q.shape[1] == 1 and has_triton(q):
        from .additive_step_energies_triton import energies

        return energies(q[:, 0], keys, weight)[:, None], None
    hidden = torch.tanh_(q[:, :, None] + keys[:, None])
    with exact(q.device):
        return hidden @ weight, hidden


def add_step_gradients(
    g: Float[Tensor, "batch queries places"],
    q: Float[Tensor, "batch queries d"],
    keys: Float[Tensor, "batch places d"],
    weight: Float[Tensor, "d"],
    hidden: Float[Tensor, "batch queries places d"] | None,
    sum_keys: Float[Tensor, "batch places d"],
    sum_weight: Float[Tensor, "batch d"],
) -> Float[Tensor, "batch queries d"]:
    """The gradient of q. Adds Σ_i g_ij (1 − tanh²) to `sum_keys`, which lacks the factor w, and Σ_ij g_ij tanh to
    `sum_weight`, whose sum over the batch is the gradient of w."""
    if q.shape[1] == 1 and has_triton(q):
        from .additive_step_energies_triton import add_gradients

        return add_gradients(g[:, 0], q[:, 0], keys, weight, sum_keys, sum_weight)[:, None]
    if hidden is None:
        hidden = torch.tanh_(q[:, :, None] + keys[:, None])
    with exact(g.device):
        sum_weight[:1].add_(g.reshape(1, -1) @ hidden.flatten(0, 2))
    into: Tensor = torch.ops.aten.tanh_backward(g[..., None], hidden)  # [batch, queries, places, d]
    sum_keys.add_(into[:, 0] if q.shape[1] == 1 else into.sum(1))
    return into.sum(2) * weight
