"""EnergyMatrix: the energies of any rectangle of the attention matrix, modified and masked, without the rest of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from .block_indices import grid, positions, unravel
from .energies import split
from .energy_forms import DistanceForm, DotForm, PairForm, TanhForm
from .kernels.additive.additive_cpu import energies as tanh_energies
from .torch_transforms import exact, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Float
    from torch import Tensor

    from .block_indices import Index
    from .energies import Energy
    from .energy_forms import Form
    from .masks import Mask
    from .modifiers import Modifier

TRITON = find_spec("triton") is not None  # found, not imported

ON_GPU = 8
"""Blocks are so many times larger there: it has no cache to stay in, and starting a kernel takes time."""


@dataclass(frozen=True, slots=True, eq=False)
class EnergyMatrix:
    """Everything that decides the energies: projected queries and keys, their form, modifiers and mask.

    `groups` query heads share one key head (grouped-query attention).
    """

    a: Float[Tensor, "*batch_q q d"]
    b: Float[Tensor, "*batch_k k d"]
    form: Form
    batch: tuple[int, ...]
    modifiers: tuple[Modifier, ...] = ()
    mask: Mask | None = None
    groups: int = 1

    @classmethod
    def of(cls, q: Tensor, k: Tensor, energy: Energy | Callable[[Tensor, Tensor], Tensor]) -> EnergyMatrix:
        a, b, form = split(energy, q, k)
        batch = tuple(torch.broadcast_shapes(q.shape[:-2], k.shape[:-2]))
        return cls(a, b, form, batch, getattr(energy, "modifiers", ()))

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
        """Tensors that are kept by reference: projected queries and keys, and those of the mask."""
        return [self.a, self.b, *(() if self.mask is None else self.mask.tensors())]

    def learned(self) -> list[Tensor]:
        """The other tensors that energies depend on: those of the form and of the modifiers."""
        weight = [self.form.weight] if isinstance(self.form, TanhForm) else []
        return weight + [x.bias for x in self.modifiers if hasattr(x, "bias")]

    def map_tensors(self, function: Callable[[Tensor], Tensor], keys: bool = True) -> EnergyMatrix:
        """The same with `function` applied to every tensor; to the keys only where `keys` is true."""
        mask = None if self.mask is None else self.mask.placed(function)
        b = function(self.b) if keys else self.b
        return replace(self._map_learned(function), a=function(self.a), b=b, mask=mask)

    def _map_learned(self, function: Callable[[Tensor], Tensor]) -> EnergyMatrix:
        form = TanhForm(function(self.form.weight)) if isinstance(self.form, TanhForm) else self.form
        modifiers = tuple(type(x)(function(x.bias)) if hasattr(x, "bias") else x for x in self.modifiers)  # type: ignore[call-arg]
        return replace(self, form=form, modifiers=modifiers)

    def detached(self) -> EnergyMatrix:
        """The same without a graph. Learned tensors are copied, because an optimizer changes them in place."""
        copied = self._map_learned(lambda x: x.detach().clone() if x.requires_grad else x)
        return replace(copied, a=self.a.detach(), b=self.b.detach())

    def whole(self, absent: float | None = None) -> Float[Tensor, "*batch q k"]:
        """All energies at once: the formula. Masked ones become `absent`."""
        b = self.b if self.groups == 1 else self.b.repeat_interleave(self.groups, dim=-3)
        a, b = self.a.to(self.precision), b.to(self.precision)
        if isinstance(self.form, PairForm) and self.form.foreign:
            e = self.form(a, b).to(self.precision)
        else:
            with exact(a.device):
                e = self.form(a, b)
        e = e.expand(*self.batch, self.queries, self.keys)
        if self.modifiers:
            index = grid(self.batch, self.queries, self.keys, e.device)
            for modifier in self.modifiers:
                e = modifier(e, *index)
        if self.mask is not None and absent is not None:
            e = e.masked_fill(~self.mask.dense(self.batch, self.queries, self.keys, e.device), absent)
        return e

    def flat(self) -> EnergyMatrix:
        """The same with one leading dimension, the form that `block` cuts from; `batch` stays what it was."""
        b = self.b if self.groups == 1 else self.b.repeat_interleave(self.groups, dim=-3)
        a, b = (x.expand(*self.batch, *x.shape[-2:]).reshape(self.count, *x.shape[-2:]) for x in (self.a, b))
        return replace(self, a=a, b=b, groups=1)

    def block(
        self, n: Index, rows: Index, cols: Index, absent: float, buffer: Tensor | None = None
    ) -> Float[Tensor, "n rows cols"]:
        """Energies of some matrices, queries and keys, of flat energies. Differentiable where gradients are on.

        With a `buffer` the result may live in it, and is the caller's until the next call.
        """
        a, b = self.a[n][:, rows], self.b[n][:, cols]
        if isinstance(self.form, DotForm) and buffer is not None:
            a, b = a.to(self.precision), b.to(self.precision)
            with exact(a.device):
                e = torch.bmm(a * self.form.scale, b.mT, out=buffer.resize_(a.shape[0], a.shape[1], b.shape[1]))
            return self.finished(e, n, rows, cols, absent)
        return self.between(a, b, n, rows, cols, absent)

    def between(
        self,
        a: Float[Tensor, "n rows d"],
        b: Float[Tensor, "n cols d"],
        n: Index,
        rows: Index,
        cols: Index,
        absent: float,
    ) -> Float[Tensor, "n rows cols"]:
        """The same for queries and keys already cut out: energies between them, finished."""
        a, b = a.to(self.precision), b.to(self.precision)
        if isinstance(self.form, PairForm) and self.form.foreign:
            e = self.form(a, b).to(self.precision).expand(a.shape[0], a.shape[1], b.shape[1])
            if not torch.is_grad_enabled():
                e = e.clone(memory_format=torch.contiguous_format)  # ours to write to: it may be a view of the inputs
        else:
            with exact(a.device):
                e = self._kernel(a, b) if self._has_kernel() else self.form(a, b)
        return self.finished(e, n, rows, cols, absent)

    def _has_kernel(self) -> bool:
        """Whether energies can be had without the [n, rows, cols, d] tensor of the formula, or faster than by it; no
        graph goes through."""
        if not isinstance(self.form, TanhForm | DistanceForm) or torch.is_grad_enabled() or traced():
            return False
        device = self.a.device.type
        if device == "cpu":
            return isinstance(self.form, TanhForm)
        return device == "cuda" and TRITON and self.precision == torch.float32

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        if isinstance(self.form, DistanceForm):
            from .kernels.distance import distance_triton

            return distance_triton.pairwise(a, b, self.form.inverse)
        assert isinstance(self.form, TanhForm)
        if a.device.type == "cpu":
            return tanh_energies(a, b, self.form.weight.to(a.dtype))
        from .kernels.additive.additive_energies_triton import pairwise

        return pairwise(a, b, self.form.weight)

    def finished(self, e: Tensor, n: Index, rows: Index, cols: Index, absent: float) -> Tensor:
        """Energies of a block after its modifiers and its mask."""
        if self.modifiers or self.mask is not None:
            device = e.device
            i, j = positions(rows, device)[:, None], positions(cols, device)
            batch = unravel(positions(n, device), self.batch)
            for modifier in self.modifiers:
                e = modifier(e, batch, i, j)
            if self.mask is not None:
                hidden = ~self.mask(batch, i, j)
                e = e.masked_fill(hidden, absent) if torch.is_grad_enabled() else e.masked_fill_(hidden, absent)
        return e

    def blocks(self, count: int, queries: int, budget: int) -> Iterator[tuple[range, range]]:
        """Cut `count` matrices of `queries` whole rows into blocks of about `budget` numbers: which, which rows."""
        cost = self.form.cost(self.a.shape[-1])
        if self.a.is_cuda:
            cost = 1 if self._has_kernel() else cost
            budget *= ON_GPU
        per_row = max(1, self.keys * cost)
        tall = max(1, min(queries, budget // per_row))
        deep = max(1, min(count, budget // (per_row * tall)))
        for n in range(0, count, deep):
            for i in range(0, queries, tall):
                yield range(n, min(n + deep, count)), range(i, min(i + tall, queries))
