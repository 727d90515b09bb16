"""The memory tape of an LSTMN: its states so far, over which it attends before every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention.attend import listeners, notify
from ...attention.blocks import exact
from ...attention.energies import TanhForm
from ...attention.energy_matrix import EnergyMatrix
from ...attention.normalizers import Softmax
from .loop import AdditiveGradients, add_step_gradients, step_energies

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class TapeEntries(AdditiveGradients):
    """The tape's memory, with room for every step, and the gradients summed in the backward pass.

    The backward pass visits steps in reverse order, so all steps that read entry i have added to its sums before the
    entry reads them. A pass may end half-way, where only the gradient of an activation is wanted, so reading the sums
    does not clear them.
    """

    def __init__(
        self, keys: Float[Tensor, "rows room d"], values: Float[Tensor, "rows room width"], weight: Float[Tensor, "d"]
    ) -> None:
        super().__init__(keys)
        self.values, self.weight = values, weight

    def zeros(self) -> tuple[Tensor, ...]:
        return *super().zeros(), torch.zeros_like(self.values)


class _Open(torch.autograd.Function):
    """The node that autograd visits last: the gradient of w, which every step used."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, entries: TapeEntries) -> Tensor:
        ctx.entries, ctx.dtype = entries, weight.dtype
        return weight.new_empty(0)  # an edge of the graph without data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.entries.sums()[1].sum(0).to(ctx.dtype), None


class _Write(torch.autograd.Function):
    """Each entry depends on the one before and each read on the last, so its backward comes after all of theirs."""

    @staticmethod
    def forward(ctx: Any, edge: Tensor, key: Tensor, value: Tensor, entries: TapeEntries, at: int) -> Tensor:
        ctx.entries, ctx.at, ctx.dtypes = entries, at, (key.dtype, value.dtype)
        entries.keys[:, at], entries.values[:, at] = key, value
        return edge.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, edge: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        into_keys, _, into_values = ctx.entries.sums()
        key = (into_keys[:, ctx.at] * ctx.entries.weight).to(ctx.dtypes[0])
        return edge.new_empty(0), key, into_values[:, ctx.at].to(ctx.dtypes[1]), None, None


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edge: Tensor, q: Tensor, entries: TapeEntries, count: int) -> Tensor:
        p, z = _look(q, entries, count)
        ctx.entries, ctx.count = entries, count
        ctx.save_for_backward(q, p)  # the backward pass computes the tanh again: T × T × d of it is not kept
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, p = ctx.saved_tensors
        with exact(g.device):
            return g.new_empty(0), _back(g, q, p, ctx.entries, ctx.count), None, None


def _look(
    q: Tensor, entries: TapeEntries, count: int
) -> tuple[Float[Tensor, "rows count"], Float[Tensor, "rows width"]]:
    """Weights and context. Autocast is off: it would round the whole tape at every step."""
    with exact(q.device):
        p = torch.softmax(step_energies(q[:, None], entries.keys[:, :count], entries.weight)[0], -1)  # [rows, 1, count]
        return p[:, 0], torch.bmm(p, entries.values[:, :count])[:, 0]


def _back(g: Tensor, q: Tensor, p: Tensor, entries: TapeEntries, count: int) -> Float[Tensor, "rows d"]:
    """The gradient of q; those of the tape and of w are added to their sums."""
    keys, values = entries.keys[:, :count], entries.values[:, :count]
    into_keys, into_weight, into_values = entries.sums()
    into_values[:, :count].addcmul_(p[..., None], g[:, None])
    into_p = torch.bmm(values, g[..., None])[..., 0]  # [rows, count]
    into_e = torch.ops.aten._softmax_backward_data(into_p, p, -1, p.dtype)
    into_q = add_step_gradients(
        into_e[:, None], q[:, None], keys, entries.weight, None, into_keys[:, :count], into_weight
    )
    return into_q[:, 0]


@dataclass
class MemoryTape:
    """z = Σ_i p_i v_i,  p = softmax_i(w · tanh(q + k_i)), over the entries written so far; zeros before the first.

    `attend` computes the same for keys known in advance. Here each entry depends on what was read from the earlier
    ones, so entries and their gradients are written one by one into memory allocated once.
    """

    entries: TapeEntries
    edge: Tensor | None  # the last node of the graph that wrote; None without gradients
    length: int = 0

    @classmethod
    def empty(cls, weight: Float[Tensor, "d"], rows: int, room: int, width: int) -> MemoryTape:
        """A tape for at most `room` entries, with values `width` wide."""
        keys, values = weight.new_empty(rows, room, len(weight)), weight.new_empty(rows, room, width)
        entries = TapeEntries(keys, values, weight.detach())
        return cls(entries, _Open.apply(weight, entries) if torch.is_grad_enabled() else None)

    def write(self, key: Float[Tensor, "rows d"], value: Float[Tensor, "rows width"]) -> None:
        """Adds an entry: a key already projected, and its value."""
        entries, at = self.entries, self.length
        if at >= entries.keys.shape[1]:
            raise ValueError(f"this tape was made for {at} entries, and all are taken; start it with more")
        self.length += 1
        if self.edge is None:
            entries.keys[:, at], entries.values[:, at] = key, value
        else:
            self.edge = _Write.apply(self.edge, key, value, entries, at)

    def look(self, q: Float[Tensor, "rows d"]) -> Float[Tensor, "rows width"]:
        """The context of a query that is already projected."""
        entries, count = self.entries, self.length
        q = q.to(entries.keys.dtype)
        if not count:
            return entries.values.new_zeros(len(q), entries.values.shape[-1])
        z: Tensor = _look(q, entries, count)[1] if self.edge is None else _Look.apply(self.edge, q, entries, count)
        if listeners:  # copies: entries are added in place, and `select` may reuse the memory
            keys, values = entries.keys[:, :count].clone(), entries.values[:, :count].clone()
            energies = EnergyMatrix(q[:, None], keys, TanhForm(entries.weight), (len(q),))
            notify(energies, Softmax(), values, z[:, None], replaceable=False)
        return z

    def select(self, rows: Int[Tensor, "chosen"]) -> MemoryTape:
        """The tape of these rows; for decoding, without gradients."""
        entries = TapeEntries(self.entries.keys[rows], self.entries.values[rows], self.entries.weight)
        return MemoryTape(entries, None, self.length)
