"""The additive energy in a recurrent loop: a few queries per step, the same keys at every step.

    e_ij = w · tanh(q_i + k_j)

`attend` returns the gradient of the keys at every call. A loop of T steps would write and add T of them, so here each
step adds to sums that the loop keeps, and the gradient is returned once, after the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention.kernels import has_triton
from ...attention.torch_transforms import exact
from ..fast_tanh import is_wide, tanh_
from .deferred_gradient import BackwardPass, will_collect

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class AdditiveGradients(BackwardPass):
    """Gradients of keys and weight, summed over the steps of one backward pass. `keys` lacks the factor w."""

    def __init__(self, keys: Float[Tensor, "rows room d"]) -> None:
        self.keys = keys
        self._sums: tuple[Tensor, ...] = ()

    def sums(self) -> tuple[Tensor, ...]:
        """Of the keys [rows, room, d], and of the weight [rows, d], a part for each row of the batch."""
        if self.is_new_pass() or not self._sums:
            self._sums = self.zeros()
        return self._sums

    def zeros(self) -> tuple[Tensor, ...]:
        wide = torch.promote_types(self.keys.dtype, torch.float32)
        return torch.zeros_like(self.keys, dtype=wide), torch.zeros_like(self.keys[:, 0], dtype=wide)

    def take(self) -> tuple[Tensor, ...]:
        """The sums; their memory is released."""
        sums, self._sums = self.sums(), ()
        return sums


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, weight: Tensor, gradients: AdditiveGradients) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.gradients, ctx.dtype = gradients, keys.dtype
        return keys.new_empty(0)  # an edge of the graph without data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        (weight,) = ctx.saved_tensors
        into_keys, into_weight = ctx.gradients.take()
        return (into_keys * weight).to(ctx.dtype), into_weight.sum(0).to(weight.dtype), None


class _Energies(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, edge: Tensor, keys: Tensor, weight: Tensor, gradients: AdditiveGradients
    ) -> Tensor:
        e, hidden = step_energies(q, keys, weight)
        ctx.gradients = gradients
        ctx.save_for_backward(q, keys, weight, hidden)
        return e

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        q, keys, weight, hidden = ctx.saved_tensors
        # A pass that computes the gradient of q alone must not add to the keys' sums.
        gradients = ctx.gradients if will_collect(ctx) else AdditiveGradients(keys)
        return add_step_gradients(g, q, keys, weight, hidden, *gradients.sums()), g.new_empty(0), None, None, None


class LoopAdditive:
    """q ↦ w · tanh(q + k_j) for one loop: make it before the loop, call it at every step."""

    def __init__(self, keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]) -> None:
        if keys.device.type == "cpu" and not is_wide(keys):
            # `tanh_` is fast in float32 only, and sums over steps and places lose digits in half precision.
            keys, weight = keys.float(), weight.float()
        self.keys, self.weight = keys.detach(), weight.detach()
        self._gradients = AdditiveGradients(self.keys)
        learns = torch.is_grad_enabled() and (keys.requires_grad or weight.requires_grad)
        self._edge = _Collect.apply(keys, weight, self._gradients) if learns else None
        self._inference_terms = None
        if not torch.is_grad_enabled() and keys.device.type == "cpu" and is_wide(keys):
            self._inference_terms = (2 * self.keys, 2 * self.weight, self.weight.sum())

    def __call__(self, q: Float[Tensor, "batch queries d"]) -> Float[Tensor, "batch queries places"]:
        q = q.to(self.keys.dtype)
        if self._inference_terms is not None and not torch.is_grad_enabled():
            # As `tanh_` does it, with the factors and the sum taken out: w · tanh(x) = 2w · σ(2x) − Σ w.
            keys, weight, total = self._inference_terms
            with exact(q.device):
                return torch.sigmoid_((2 * q)[:, :, None] + keys[:, None]) @ weight - total
        if self._edge is None:
            return step_energies(q, self.keys, self.weight)[0]
        e: Tensor = _Energies.apply(q, self._edge, self.keys, self.weight, self._gradients)
        return e


def step_energies(
    q: Float[Tensor, "batch queries d"], keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]
) -> tuple[Float[Tensor, "batch queries places"], Float[Tensor, "batch queries places d"] | None]:
    """The energies, and tanh(q_i + k_j) where the backward pass can use it; None where a kernel computes it again."""
    if q.shape[1] == 1 and has_triton(q):
        from .loop_additive_triton import energies

        return energies(q[:, 0], keys, weight)[:, None], None
    hidden = tanh_(q[:, :, None] + keys[:, None])
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
        from .loop_additive_triton import add_gradients

        return add_gradients(g[:, 0], q[:, 0], keys, weight, sum_keys, sum_weight)[:, None]
    if hidden is None:
        hidden = tanh_(q[:, :, None] + keys[:, None])
    with exact(g.device):
        sum_weight[:1].add_(g.reshape(1, -1) @ hidden.flatten(0, 2))
    into: Tensor = torch.ops.aten.tanh_backward(g[..., None], hidden)  # [batch, queries, places, d]
    sum_keys.add_(into[:, 0] if q.shape[1] == 1 else into.sum(1))
    return into.sum(2) * weight
