"""A tape: what a recurrence has written so far, and looks back at before every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention import Softmax
from ...attention.energy_forms import TanhForm
from ...attention.energy_matrix import EnergyMatrix
from ...attention.listeners import listeners, notify
from ...attention.request import Request
from ...attention.torch_transforms import exact
from .deferred_gradient import BackwardPass
from .rnn_gates import fused

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass
class _Rows(BackwardPass):
    """The tape's memory, with room for every step, and what the backward pass has added up for it so far.

    Going back, the steps come in reverse, so all that looked at entry i have added to its sums before the entry asks
    for them. A pass may stop half-way, where only the gradient of an activation is wanted, so the sums cannot be
    cleared by whoever reads them.
    """

    keys: Float[Tensor, "rows room d"]
    values: Float[Tensor, "rows room width"]
    weight: Float[Tensor, "d"]
    into_keys: Tensor | None = None  # without the factor `weight`, which all of them share
    into_values: Tensor | None = None
    into_weight: Tensor | None = None  # a row for each of the batch

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.begins() or self.into_keys is None or self.into_values is None or self.into_weight is None:
            self.into_keys, self.into_values = torch.zeros_like(self.keys), torch.zeros_like(self.values)
            self.into_weight = torch.zeros_like(self.keys[:, 0])
        return self.into_keys, self.into_values, self.into_weight


class _Open(torch.autograd.Function):
    """Where autograd comes last: the gradient of w, which every step used."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: _Rows) -> Tensor:
        ctx.rows, ctx.dtype = rows, weight.dtype
        return weight.new_empty(0)  # an edge in the graph, nothing to compute with

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.sums()[2].sum(0).to(ctx.dtype), None


class _Write(torch.autograd.Function):
    """Each entry hangs on the one before, and every look on the last: so going back it is passed after all of them."""

    @staticmethod
    def forward(ctx: Any, edge: Tensor, key: Tensor, value: Tensor, rows: _Rows, at: int) -> Tensor:
        ctx.rows, ctx.at, ctx.dtypes = rows, at, (key.dtype, value.dtype)
        rows.keys[:, at], rows.values[:, at] = key, value
        return edge.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, edge: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        into_keys, into_values, _ = ctx.rows.sums()
        key = (into_keys[:, ctx.at] * ctx.rows.weight).to(ctx.dtypes[0])
        return edge.new_empty(0), key, into_values[:, ctx.at].to(ctx.dtypes[1]), None, None


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edge: Tensor, q: Tensor, rows: _Rows, count: int) -> Tensor:
        p, z = _look(q, rows, count)
        ctx.rows, ctx.count = rows, count
        ctx.save_for_backward(q, p)  # the tanh is computed again going back: T × T of it is not kept
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, p = ctx.saved_tensors
        with exact(g.device):
            return g.new_empty(0), _back(g, q, p, ctx.rows, ctx.count), None, None


def _look(q: Tensor, rows: _Rows, count: int) -> tuple[Float[Tensor, "rows count"], Float[Tensor, "rows width"]]:
    """Weights and what they find. Not for autocast to touch: it would round the whole tape at every step."""
    keys, values = rows.keys[:, :count], rows.values[:, :count]
    with exact(q.device):
        if fused(q):
            from .loop_additive_triton import scores_forward

            e = scores_forward(q, keys, rows.weight)
        else:
            e = torch.tanh_(q[:, None] + keys) @ rows.weight
        p = torch.softmax(e, -1)
        return p, torch.bmm(p[:, None], values)[:, 0]


def _back(g: Tensor, q: Tensor, p: Tensor, rows: _Rows, count: int) -> Float[Tensor, "rows d"]:
    """The gradient of q; those of the tape and of w are added to what is there."""
    keys, values = rows.keys[:, :count], rows.values[:, :count]
    into_keys, into_values, into_weight = rows.sums()
    into_values[:, :count].addcmul_(p[..., None], g[:, None])
    into_p = torch.bmm(values, g[..., None])[..., 0]  # [rows, count]
    into_e = torch.ops.aten._softmax_backward_data(into_p, p, -1, p.dtype)
    if fused(q):
        from .loop_additive_triton import scores_backward

        return scores_backward(into_e, q, keys, rows.weight, into_keys[:, :count], into_weight)
    hidden = torch.tanh_(q[:, None] + keys)  # [rows, count, d]
    into_weight.add_(torch.bmm(into_e[:, None], hidden)[:, 0])
    into = torch.ops.aten.tanh_backward(into_e[..., None], hidden)  # g (1 − tanh²)
    into_keys[:, :count].add_(into)
    to_q: Tensor = into.sum(1) * rows.weight
    return to_q


class MemoryTape:
    """z = Σ_i p_i v_i,  p = softmax_i(w · tanh(q + k_i)), over the entries written so far; zeros before the first.

    `attend` says the same for keys that are all there. Here each entry depends on what was read from those before it,
    so they are written one by one into memory taken once, and so are their gradients.
    """

    def __init__(self, weight: Float[Tensor, "d"], rows: int, room: int, width: int) -> None:
        self._weight = weight
        keys, values = weight.new_empty(rows, room, len(weight)), weight.new_empty(rows, room, width)
        self._rows = _Rows(keys, values, weight.detach())
        self._edge = _Open.apply(weight, self._rows) if torch.is_grad_enabled() else None
        self.length = 0

    def write(self, key: Float[Tensor, "rows d"], value: Float[Tensor, "rows width"]) -> None:
        """Adds an entry: a key already projected, and its value."""
        rows, at = self._rows, self.length
        if at >= rows.keys.shape[1]:
            raise ValueError(f"this tape was made for {at} entries, and all are taken; start it with more")
        self.length += 1
        if self._edge is None:
            rows.keys[:, at], rows.values[:, at] = key, value
        else:
            self._edge = _Write.apply(self._edge, key, value, rows, at)

    def look(self, q: Float[Tensor, "rows d"]) -> Float[Tensor, "rows width"]:
        """What a query, already projected, finds."""
        rows, count = self._rows, self.length
        q = q.to(rows.keys.dtype)
        if not count:
            return rows.values.new_zeros(len(q), rows.values.shape[-1])
        z: Tensor = _look(q, rows, count)[1] if self._edge is None else _Look.apply(self._edge, q, rows, count)
        if listeners:  # copies: the tape is written on, and its memory may be taken over
            keys, values = rows.keys[:, :count].clone(), rows.values[:, :count].clone()
            energies = EnergyMatrix(q[:, None], keys, TanhForm(rows.weight), (len(q),))
            notify(Request(energies, values, Softmax(), 0.0, weights=True), z[:, None], None)
        return z

    def select(self, rows: Int[Tensor, "chosen"]) -> MemoryTape:
        """The same for these rows; for decoding, where nothing is learned."""
        chosen = object.__new__(MemoryTape)
        old = self._rows
        chosen._weight, chosen._edge, chosen.length = self._weight, None, self.length
        chosen._rows = _Rows(old.keys[rows], old.values[rows], old.weight)
        return chosen
