"""EnergyMatrix: any block of the modified and masked energies, without the matrix."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from . import block_plan
from .block_plan import Cut
from .energies import DotForm, PairForm
from .parts import exact, grid, positions, readable, unravel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .energies import Energy, EnergyForm
    from .masks import Interval, Mask
    from .modifiers import Modifier
    from .parts import Index

ON_GPU = 8
"""How many times larger blocks are on a GPU, where launching a kernel takes time and blocks need not fit a cache."""


@dataclass(frozen=True, slots=True, eq=False)
class EnergyMatrix:
    """Everything that decides the energies: projected queries and keys, their form, modifiers and mask.

    `groups` query heads share one key head (grouped-query attention).
    """

    a: Float[Tensor, "*batch_q q d"]
    b: Float[Tensor, "*batch_k k d"]
    form: EnergyForm
    batch: tuple[int, ...]
    modifiers: tuple[Modifier, ...] = ()
    mask: Mask | None = None
    groups: int = 1

    @classmethod
    def of(cls, q: Tensor, k: Tensor, energy: Energy | Callable[[Tensor, Tensor], Tensor]) -> EnergyMatrix:
        a, b, form = split(energy, q, k)
        batch = tuple(torch.broadcast_shapes(q.shape[:-2], k.shape[:-2]))
        return cls(a, b, form, batch, getattr(energy, "modifiers", ()))

    @classmethod
    def of_matrix(cls, w: Float[Tensor, "*batch q k"]) -> EnergyMatrix:
        """Numbers that are there already, by reference: products of nothing, with these added."""
        from .modifiers import Bias  # which imports this module

        *batch, queries, keys = w.shape
        nothing = w.new_zeros(1).expand
        a, b = nothing(*batch, queries, 1), nothing(*batch, keys, 1)
        return cls(a, b, DotForm(), tuple(batch), (Bias(w),))

    @property
    def queries(self) -> int:
        return self.a.shape[-2]

    @property
    def keys(self) -> int:
        return self.b.shape[-2]

    @property
    def count(self) -> int:
        """How many matrices there are: the product of the leading dimensions."""
        return math.prod(self.batch)

    @property
    def precision(self) -> torch.dtype:
        """Energies are held in float32 at least: float16 overflows at 65,504 and bfloat16 has 8 bits."""
        return torch.promote_types(self.a.dtype, torch.float32)

    def references(self) -> list[Tensor]:
        """Tensors that are kept by reference: projected queries and keys, those of the mask, and those of functions."""
        mask = () if self.mask is None else self.mask.tensors()
        parts = (self.form, *self.modifiers, *(() if self.mask is None else (self.mask,)))
        return [self.a, self.b, *mask, *(x for part in parts for x in part.function_tensors())]

    def learned(self) -> list[Tensor]:
        """The other tensors that energies depend on: those of the form and of the modifiers."""
        return [x for part in (self.form, *self.modifiers) for x in part.tensors()]

    def map_tensors(self, function: Callable[[Tensor], Tensor], keys: bool = True) -> EnergyMatrix:
        """The same with `function` applied to every tensor; to the keys only where `keys` is true."""
        mask = None if self.mask is None else self.mask.map_tensors(function)
        b = function(self.b) if keys else self.b
        return replace(self.map_learned(function), a=function(self.a), b=b, mask=mask)

    def map_learned(self, function: Callable[[Tensor], Tensor]) -> EnergyMatrix:
        """The same with `function` applied to the tensors of form and modifiers, in the order of `learned`."""
        modifiers = tuple(x.map_tensors(function) for x in self.modifiers)
        return replace(self, form=self.form.map_tensors(function), modifiers=modifiers)

    def detached(self) -> EnergyMatrix:
        """The same without a graph. Learned tensors are copied, because an optimizer changes them in place."""
        copied = self.map_learned(lambda x: x.detach().clone() if x.requires_grad else x)
        return replace(copied, a=self.a.detach(), b=self.b.detach())

    def per_query_head(self, x: Float[Tensor, "*batch_k k d"]) -> Float[Tensor, "*batch_k k d"]:
        """Keys or values with one head per query head."""
        return x if self.groups == 1 else x.repeat_interleave(self.groups, dim=-3)

    def flatten(self, x: Float[Tensor, "*batch_q t d"]) -> Float[Tensor, "n t d"]:
        """Queries, keys or values with one leading dimension."""
        if len(self.batch) == 1 and x.shape[:-2] == self.batch:  # as it is: each view would be a step of the backward
            return x
        return x.expand(*self.batch, *x.shape[-2:]).reshape(self.count, *x.shape[-2:])

    def whole(self, absent: float | None = None) -> Float[Tensor, "*batch q k"]:
        """All energies at once: the formula, with derivatives of every order. Masked ones become `absent`."""
        a, b = self.a.to(self.precision), self.per_query_head(self.b).to(self.precision)
        with nullcontext() if self.form.opaque else exact(a.device):
            e = self.form.formula(a, b).to(self.precision).expand(*self.batch, self.queries, self.keys)
        if self.modifiers:
            index = grid(self.batch, self.queries, self.keys, e.device)
            for modifier in self.modifiers:
                e = modifier.whole(e, *index)
        if self.mask is not None and absent is not None:
            e = e.masked_fill(~self.mask.dense(self.batch, self.queries, self.keys, e.device), absent)
        return e

    def flat(self) -> EnergyMatrix:
        """The same with one leading dimension, the form that `block` cuts from; `batch` stays what it was."""
        b = self.flatten(self.per_query_head(self.b))
        return replace(self, a=self.flatten(self.a), b=b, groups=1)

    def block(
        self, n: Index, rows: Index, cols: Index, absent: float, buffer: Tensor | None = None, cut: Cut | None = None
    ) -> Float[Tensor, "n rows cols"]:
        """Energies of some matrices, queries and keys, of flat energies. Differentiable where gradients are on.

        With a `buffer` the result may use its memory, and is valid until the next call. A `cut` of the plan knows which
        of them the mask hides.
        """
        return self.between(self.a[n][:, rows], self.b[n][:, cols], n, rows, cols, absent, buffer, cut)

    def between(
        self,
        a: Float[Tensor, "n rows d"],
        b: Float[Tensor, "n cols d"],
        n: Index,
        rows: Index,
        cols: Index,
        absent: float,
        buffer: Tensor | None = None,
        cut: Cut | None = None,
    ) -> Float[Tensor, "n rows cols"]:
        """`block` of queries and keys that were cut out before."""
        a, b = a.to(self.precision), b.to(self.precision)
        with nullcontext() if self.form.opaque else exact(a.device):
            e = None if buffer is None else self.form.write(a, b, buffer)
            if e is None:
                e = self.form.kernel_energies(a, b) if self._has_kernel() else self.form(a, b).to(self.precision)
        e = e.expand(a.shape[0], a.shape[1], b.shape[1])
        if self.form.opaque and not torch.is_grad_enabled():
            e = e.clone(memory_format=torch.contiguous_format)  # ours to write to: it may be a view of the inputs
        if cut is None or not cut.known:
            return self.finished(e, n, rows, cols, absent)
        if self.modifiers:
            e = replace(self, mask=None).finished(e, n, rows, cols, absent)
        return e if cut.hidden is None else _hide(e, cut.hidden, absent)

    def finished(self, e: Tensor, n: Index, rows: Index, cols: Index, absent: float) -> Tensor:
        """Energies of a block after its modifiers and its mask."""
        if self.modifiers or self.mask is not None:
            device = e.device
            i, j = positions(rows, device)[:, None], positions(cols, device)
            batch = unravel(positions(n, device), self.batch)
            for modifier in self.modifiers:
                e = modifier(e, batch, i, j)
            if any(modifier.opaque for modifier in self.modifiers) and not torch.is_grad_enabled():
                e = e.clone(memory_format=torch.contiguous_format)  # ours to write to: a function may return its own
            if self.mask is not None:
                e = _hide(e, ~self.mask(batch, i, j), absent)
        return e

    def _has_kernel(self) -> bool:
        """Whether the form has a kernel for these energies."""
        some = 0 not in (*self.a.shape, *self.b.shape) and readable(self.a)
        return some and self.form.has_kernel(self.a.device.type, self.precision)

    def blocks(self, entries: Sequence[int], queries: Sequence[int], budget: int, whole: bool = False) -> Iterator[Cut]:
        """Blocks of about `budget` numbers, of some matrices and queries, with the keys that some of these queries see;
        with all keys where `whole`, or where there is no plan.
        """
        cost = 1 if self._has_kernel() else self.form.cost(self.a.shape[-1])
        budget = budget * (ON_GPU if self.a.is_cuda else 1) // max(1, cost)
        plan = None if whole else block_plan.plan(self, entries, queries)
        if plan is None or self.mask is None:
            every = Cut(slice(0, len(entries)), slice(0, len(queries)), slice(0, self.keys), None, self.mask is None)
            yield from every.split(budget)
            return
        for cut in plan.cuts(self.mask):
            yield from cut.split(budget)

    def interval(self, entries: Int[Tensor, " n"], queries: Int[Tensor, " q"]) -> Interval | None:
        """Start and stop of the keys that queries see, each [n or 1, q or 1]; None where the mask is no interval."""
        assert self.mask is not None
        bounds = self.mask.bounds(unravel(entries, self.batch), queries[:, None], self.keys)
        if bounds is None:
            return None
        # A rule about rows alone gives [q, 1], one about the batch [n, 1, 1], one about neither [].
        start, stop = (x.reshape(*[1] * (3 - x.dim()), *x.shape).squeeze(-1) for x in torch.broadcast_tensors(*bounds))
        return start, stop

    def intervals(self) -> Interval | None:
        """The same for all matrices and queries."""
        return self.interval(*(torch.arange(n, device=self.a.device) for n in (self.count, self.queries)))


def _hide(e: Tensor, hidden: Tensor, absent: float) -> Tensor:
    return e.masked_fill(hidden, absent) if torch.is_grad_enabled() else e.masked_fill_(hidden, absent)


def split(
    energy: Energy | Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor
) -> tuple[Tensor, Tensor, EnergyForm]:
    """`energy.split(q, k)`, and for a plain function the form that just calls it."""
    splitter = getattr(energy, "split", None)
    if splitter is None:
        return q, k, PairForm(energy)
    return splitter(q, k)  # type: ignore[no-any-return]


def clear_hidden_keys(
    mask: Mask, batch: tuple[int, ...], groups: int, queries: int, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros where `mask.hidden` says that no query sees them.

    Where numbers can be read without waiting for a GPU and all are finite, they stay as they are: nothing would change.
    """
    if k.device.type == "cpu" and readable(k) and _is_finite(k) and _is_finite(v):
        return k, v
    hidden = mask.hidden(batch, queries, k.shape[-2], k.device)
    if hidden is None:
        return k, v
    k, v = (x.masked_fill(_for_keys(hidden, batch, groups, x), 0) for x in (k, v))
    return k, v


def _is_finite(x: Tensor) -> bool:
    # One pass without a copy; a sum that overflows is checked again.
    total = x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32))
    return math.isfinite(float(total)) or bool(x.isfinite().all())


def _for_keys(
    hidden: Bool[Tensor, "*batch k"], batch: tuple[int, ...], groups: int, x: Float[Tensor, "*batch_k k d"]
) -> Bool[Tensor, "*batch_k k 1"]:
    """Keys that are hidden in every matrix that has them: leading dimensions of keys may be broadcast or shared."""
    hidden = hidden.expand(*batch, hidden.shape[-1])
    if groups > 1:
        hidden = hidden.unflatten(-2, (-1, groups)).all(-2)
    lead = x.shape[:-2]
    for _ in range(len(batch) - len(lead)):
        hidden = hidden.all(0)
    for at, size in enumerate(lead):
        if size == 1:
            hidden = hidden.all(at, keepdim=True)
    return hidden[..., None]
