"""Energies of one query against keys that a loop keeps looking at: e_j = w · tanh(q + k_j).

`attend` computes the same; this is for a recurrence, which asks it once per step with the same keys. The gradient of
the keys is summed up in place as the backward pass goes through the steps, and handed over once, at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention.torch_transforms import exact
from .deferred_gradient import BackwardPass, collects
from .rnn_gates import fused

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class _Sums(BackwardPass):
    """What the steps have added up so far; w is kept out of the keys' sum, where it is the same factor throughout."""

    keys: Tensor | None = None
    weight: Tensor | None = None

    def now(self) -> _Sums:
        if self.begins():
            self.keys = self.weight = None
        return self


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, weight: Tensor, sums: _Sums) -> Tensor:
        ctx.save_for_backward(keys, weight)
        ctx.sums = sums
        return keys.new_empty(0)  # an edge in the graph, nothing to compute with

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        keys, weight = ctx.saved_tensors
        sums = ctx.sums.now()
        into_keys, into_weight = sums.keys, sums.weight
        sums.keys = sums.weight = None
        if into_keys is None or into_weight is None:  # no step led to the loss
            return torch.zeros_like(keys), torch.zeros_like(weight), None
        return (into_keys * weight).to(keys.dtype), into_weight.sum(0).to(weight.dtype), None


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, edge: Tensor, keys: Tensor, weight: Tensor, sums: _Sums) -> Tensor:
        ctx.sums = sums
        if fused(q):
            from .loop_additive_triton import scores_forward

            ctx.save_for_backward(q, keys, weight)
            return scores_forward(q, keys, weight)
        hidden = torch.tanh_(q[:, None] + keys)  # [batch, places, d]
        ctx.save_for_backward(hidden, weight)
        with exact(q.device):
            return hidden @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        # Where someone asks for the gradient of q alone, nothing is added to what the keys will get.
        sums = ctx.sums.now() if collects(ctx) else _Sums()
        if fused(g):
            from .loop_additive_triton import scores_backward

            q, keys, weight = ctx.saved_tensors
            if sums.keys is None or sums.weight is None:
                sums.keys = torch.zeros_like(keys, dtype=torch.float32)
                sums.weight = torch.zeros_like(q, dtype=torch.float32)
            return scores_backward(g, q, keys, weight, sums.keys, sums.weight), g.new_empty(0), None, None, None
        hidden, weight = ctx.saved_tensors
        with exact(g.device):
            into_weight = g.reshape(1, -1) @ hidden.flatten(0, 1)  # [1, d]
        into = torch.ops.aten.tanh_backward(g[..., None], hidden)  # g (1 − tanh²), [batch, places, d]
        into_q = into.sum(1) * weight
        sums.weight = into_weight if sums.weight is None else sums.weight.add_(into_weight)
        sums.keys = into if sums.keys is None else sums.keys.add_(into)
        return into_q, g.new_empty(0), None, None, None


class Scores:
    """q ↦ w · tanh(q + k_j) for one loop: make it before the loop, call it at every step."""

    def __init__(self, keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]) -> None:
        self._given = keys, weight
        self.keys, self.weight = keys.detach(), weight.detach()
        self._sums = _Sums()
        learns = torch.is_grad_enabled() and (keys.requires_grad or weight.requires_grad)
        self._edge = _Collect.apply(keys, weight, self._sums) if learns else None

    def __call__(self, q: Float[Tensor, "batch queries d"]) -> Float[Tensor, "batch queries places"]:
        q = q.to(self.keys.dtype)
        if self._edge is None:
            if q.shape[1] == 1 and fused(q):
                from .loop_additive_triton import scores_forward

                return scores_forward(q[:, 0], self.keys, self.weight)[:, None]
            return torch.tanh_(q[:, :, None] + self.keys[:, None]) @ self.weight
        if q.shape[1] > 1:  # several queries at a step and gradients: not what a loop asks for, but right
            keys, weight = self._given
            return torch.tanh(q[:, :, None] + keys[:, None]) @ weight
        e: Tensor = _Scores.apply(q[:, 0], self._edge, self.keys, self.weight, self._sums)
        return e[:, None]

    def select(self, rows: Int[Tensor, "chosen"]) -> Scores:
        """The same for these entries of the batch."""
        keys, weight = self._given
        return Scores(keys[rows], weight)
