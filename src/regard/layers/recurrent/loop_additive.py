"""The additive energy in a recurrent loop, with the gradient of the keys returned once, after the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention.kernels.additive.additive_step_energies import add_step_gradients, step_energies
from .deferred_gradient import BackwardPass, collects

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
        if self.begins() or not self._sums:
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
        gradients = ctx.gradients if collects(ctx) else AdditiveGradients(keys)
        return add_step_gradients(g, q, keys, weight, hidden, *gradients.sums()), g.new_empty(0), None, None, None


class LoopAdditive:
    """q ↦ w · tanh(q + k_j) for one loop: make it before the loop, call it at every step."""

    def __init__(self, keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]) -> None:
        self.keys, self.weight = keys.detach(), weight.detach()
        self._gradients = AdditiveGradients(self.keys)
        learns = torch.is_grad_enabled() and (keys.requires_grad or weight.requires_grad)
        self._edge = _Collect.apply(keys, weight, self._gradients) if learns else None

    def __call__(self, q: Float[Tensor, "batch queries d"]) -> Float[Tensor, "batch queries places"]:
        q = q.to(self.keys.dtype)
        if self._edge is None:
            return step_energies(q, self.keys, self.weight)[0]
        e: Tensor = _Energies.apply(q, self._edge, self.keys, self.weight, self._gradients)
        return e
