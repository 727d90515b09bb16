"""Additive attention in a loop that goes one query at a time, with the gradients of keys and values summed in place.

Step t computes z_t = Σ_j p_tj v_j with p_t = softmax_j(w · tanh(q_t + k_j)). Autograd would return gradients as large
as all keys and all values at every step, and add T of them; here each step adds to sums that the entries keep. So keys
and values may also be written during the loop: entry t then depends on what was read from those before it (the tape of
an LSTMN).

A node of the graph without data, an edge, stands between the steps: each write depends on the one before and each read
on the last, so the backward pass reaches a write after all that read its entries. A pass may end half-way, where only
the gradient of an activation is wanted, so a write does not clear the sums: the next pass begins with new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ..parts import exact
from . import has_triton

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def energies(
    q: Float[Tensor, "batch queries d"], keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]
) -> Float[Tensor, "batch queries places"]:
    """w · tanh(q_i + k_j), without a graph."""
    if q.shape[1] == 1 and has_triton(q):
        from .additive_triton import step_energies

        return step_energies(q[:, 0], keys, weight)[:, None]
    with exact(q.device):
        return _tanh_(q[:, :, None] + keys[:, None]) @ weight


def energy_gradients(
    g: Float[Tensor, "batch queries places"],
    q: Float[Tensor, "batch queries d"],
    keys: Float[Tensor, "batch places d"],
    weight: Float[Tensor, "d"],
    into_keys: Float[Tensor, "batch places d"],
) -> tuple[Float[Tensor, "batch queries d"], Float[Tensor, "d"]]:
    """The gradients of q and w. Adds Σ_i g_ij (1 − tanh²), which lacks the factor w, to `into_keys`."""
    if q.shape[1] == 1 and has_triton(q):
        from .additive_triton import add_gradients

        into_q, into_w = add_gradients(g[:, 0], q[:, 0], keys, weight, into_keys)
        return into_q[:, None], into_w
    hidden = _tanh_(q[:, :, None] + keys[:, None])  # computed again: a loop over its own past would keep T × T × d
    with exact(g.device):
        into_w = (g.reshape(1, -1) @ hidden.flatten(0, 2))[0]
    into: Tensor = torch.ops.aten.tanh_backward(g[..., None], hidden)  # [batch, queries, places, d]
    into_keys.add_(into[:, 0] if q.shape[1] == 1 else into.sum(1))
    return into.sum(2) * weight, into_w


def _tanh_(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """tanh(x) = 2 σ(2x) − 1, in place: on a CPU PyTorch's sigmoid takes a sixth of the time of its tanh.

    The error is about that of one rounding of a number between 1 and 2.
    """
    return x.tanh_() if x.device.type != "cpu" else x.mul_(2).sigmoid_().mul_(2).sub_(1)


class Entries:
    """Keys and values with room for those to be written, and the sums of their gradients in this backward pass."""

    def __init__(
        self, keys: Float[Tensor, "batch room d"], values: Float[Tensor, "batch room width"], weight: Float[Tensor, "d"]
    ) -> None:
        self.keys, self.values, self.weight = keys, values, weight.detach()
        self._pass, self._sums = -1, (keys, values)

    def sums(self) -> tuple[Float[Tensor, "batch room d"], Float[Tensor, "batch room width"]]:
        """Of the keys, without their factor w, and of the values; in float32 at least."""
        last, self._pass = self._pass, torch._C._current_graph_task_id()
        if last != self._pass:
            wide = torch.promote_types(self.keys.dtype, torch.float32)
            self._sums = torch.zeros_like(self.keys, dtype=wide), torch.zeros_like(self.values, dtype=wide)
        return self._sums


class Write(torch.autograd.Function):
    """The edge after keys and values were written from place `at` on."""

    @staticmethod
    def forward(ctx: Any, edge: Tensor, keys: Tensor, values: Tensor, entries: Entries, at: int) -> Tensor:
        ctx.entries, ctx.places, ctx.dtypes = entries, slice(at, at + keys.shape[1]), (keys.dtype, values.dtype)
        return edge.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, edge: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        keys, values = (sums[:, ctx.places] for sums in ctx.entries.sums())
        return edge.new_empty(0), (keys * ctx.entries.weight).to(ctx.dtypes[0]), values.to(ctx.dtypes[1]), None, None


class Look(torch.autograd.Function):
    """z and p = softmax(e) over the first `count` entries; `seen` [batch, queries or 1, count] hides the others."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, weight: Tensor, edge: Tensor, entries: Entries, count: int, seen: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        e = energies(q, entries.keys[:, :count], weight)
        p = torch.softmax(e if seen is None else e.masked_fill_(~seen, -torch.inf), -1)
        ctx.entries, ctx.count = entries, count
        ctx.save_for_backward(q, weight, p)
        ctx.set_materialize_grads(False)
        values = entries.values[:, :count]
        with exact(q.device):
            return p.to(values.dtype) @ values, p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, into_z: Tensor | None, into_p: Tensor | None) -> tuple[Tensor | None, ...]:
        q, weight, p = ctx.saved_tensors
        keys, values = (x[:, : ctx.count] for x in (ctx.entries.keys, ctx.entries.values))
        sum_keys, sum_values = (x[:, : ctx.count] for x in ctx.entries.sums())
        with exact(q.device):
            if into_z is not None:
                into_z = into_z.to(sum_values.dtype)
                if q.shape[1] == 1:
                    sum_values.addcmul_(p.mT, into_z)
                else:
                    sum_values.add_(p.mT @ into_z)
                through = (into_z.to(values.dtype) @ values.mT).to(p.dtype)
                into_p = through if into_p is None else through + into_p
            if into_p is None:
                return (None,) * 6
            into_e = torch.ops.aten._softmax_backward_data(into_p, p, -1, p.dtype)
            into_q, into_w = energy_gradients(into_e, q, keys, weight, sum_keys)
        return into_q, into_w, q.new_empty(0), None, None, None
