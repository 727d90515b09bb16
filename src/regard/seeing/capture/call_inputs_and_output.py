"""Record: one call of attention, with everything its weights depend on."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ...attention import Bias, Modifier, SoftCap, Softmax, causal, dense, window
from ...attention.energies.energy_forms import DotForm
from ...attention.energies.lazy_energy_matrix import EnergyMatrix
from .interval_mask import intervals_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Mask, Normalizer
    from ...attention.block_indices import Batch

    After = Callable[[Tensor, Tensor], Tensor]
    """From W·v of some rows, [*batch, rows, D_v], and the indices of these rows, to the output of the model."""

_SOFTMAX = Softmax()
ROWS = 64
"""The most rows of an output that are kept of one step, evenly spaced: fidelity is measured on these."""
CLOSED = -9984.0
"""A bias of this or less closes a key: masks written as numbers have −10⁴ (−9984 in bfloat16), −10⁹, the least number
of their type, or −∞."""


SHORT = 1 << 14
"""Masks of fewer numbers are kept as they are."""


@dataclass(frozen=True, slots=True)
class Rounded(Modifier):
    """Energies rounded as eager attention in float16 or bfloat16 rounds them: the product, its scale, and a soft cap.

    bfloat16 has 8 bits. An energy of 20 is rounded by up to 0.06, and its weight is wrong by as many parts.
    """

    dtype: str
    scale: float = 1.0
    cap: float | None = None
    opaque = False

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        x = e.to(getattr(torch, self.dtype))
        x = x if self.scale == 1 else x * self.scale
        x = x if self.cap is None else torch.tanh(x / self.cap) * self.cap
        return x.to(e.dtype)

    def continues(self, first: Modifier, queries: int) -> bool:
        return self == first


@dataclass(slots=True, eq=False)
class Record:
    """The inputs and the output of a call, by reference: nothing is copied or computed."""

    energies: EnergyMatrix
    v: Float[Tensor, "*batch k d_v"]
    out: Float[Tensor, "*batch q d_v"]
    origin: str
    normalize: Normalizer = _SOFTMAX
    state: Float[Tensor, "*batch q"] | None = None
    """The row state, if the kernel returned it."""
    dropout: float = 0.0
    cross: bool | None = None
    """Whether keys come from another sequence than queries, if that is known."""
    rows: Int[Tensor, " rows"] | None = None
    """The queries that `out` belongs to; None for all of them."""
    measured: float | None = None
    """The fidelity error, if it was measured before and cannot be measured now (a trace)."""
    budget: float | None = None
    """The error that rounding explains, as measured with it."""
    steps: list[int] | None = None
    """The number of queries of each forward pass, if they are already joined (a trace)."""
    after: After | None = None
    """What the model computes from W·v to get `out`, row by row; None if `out` is W·v."""
    changed: bool = False
    """Whether queries, masks or learned parts were changed in place between the call and the making of this record."""
    key_versions: tuple[int | None, int | None] | None = None
    """The version counters of keys and values at the call; None if the record was made at the call."""
    matrix: str = ""
    """Why the weights are kept as a whole matrix; empty if they are computed from queries and keys."""


def dot_energies(
    q: Float[Tensor, "*batch q d"],
    k: Float[Tensor, "*batch_k k d"],
    scale: float | None = None,
    *,
    masks: tuple[Tensor | Mask | None, ...] = (),
    softcap: float | None = None,
    rounded: bool = False,
) -> EnergyMatrix:
    """softcap(q·k·scale), then each mask: a `Mask` or booleans that close keys, or numbers that are added.

    With `rounded`, each step is rounded to the type of q, as eager attention does.
    """
    q, k = q.detach(), k.detach()
    groups = 1
    if q.dim() >= 4 and k.dim() >= 4 and k.shape[-3] not in (1, q.shape[-3]):
        groups = q.shape[-3] // k.shape[-3]
    batch, lead = tuple(q.shape[:-2]), tuple(k.shape[:-2]) if groups == 1 else (*k.shape[:-3], q.shape[-3])
    if batch != lead:
        batch = tuple(torch.broadcast_shapes(batch, lead))
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    modifiers: list[Modifier] = [] if softcap is None else [SoftCap(softcap)]
    kind = str(q.dtype).removeprefix("torch.")
    if rounded:
        modifiers, scale = [Rounded(kind, scale, softcap)], 1.0
    rule: Mask | None = None
    for mask in masks:
        if mask is None:
            continue
        if isinstance(mask, torch.Tensor) and mask.dtype != torch.bool:
            # The same object if possible: a mask that all layers share is kept once.
            modifiers.append(Bias(mask.detach() if mask.requires_grad else mask))
            modifiers += [Rounded(kind)] if rounded else []
            continue
        closed = dense(mask) if isinstance(mask, torch.Tensor) else mask
        rule = closed if rule is None else rule & closed
    return EnergyMatrix(q, k, DotForm(scale), batch, tuple(modifiers), rule, groups)


def causal_window(queries: int, keys: int, is_causal: bool, size: int | None) -> Mask | None:
    """The masks that flash kernels take as flags: the last query sees the last key, and `size` keys back."""
    offset = keys - queries
    rule = causal(offset) if is_causal else None
    if size is None:
        return rule
    near = window(size, offset=offset)
    return near if rule is None else rule & near


def tensors_of(record: Record) -> list[Tensor]:
    """Everything that is kept of a call."""
    return [*fixed_of(record), record.energies.b, record.v]


def fixed_of(record: Record) -> list[Tensor]:
    """What the weights depend on, without keys and values, which a cache may fill further in place."""
    energies = record.energies
    references = [x for x in energies.references() if x is not energies.b]
    normalize, state = record.normalize, () if record.state is None else (record.state,)
    return [*references, *energies.learned(), *normalize.tensors(), *normalize.function_tensors(), *state]


def evenly_spaced(length: int, count: int) -> Int[Tensor, " count"]:
    """At most `count` of `length` positions, the first and the last included."""
    count = min(count, length)
    # Integers on the CPU, whatever the default dtype and device are.
    return torch.tensor([n * (length - 1) // max(count - 1, 1) for n in range(count)], dtype=torch.int64, device="cpu")


def some_rows(
    out: Float[Tensor, "*batch q d_v"],
) -> tuple[Int[Tensor, " rows"] | None, Float[Tensor, "*batch rows d_v"]]:
    """The rows of an output that are kept, and a copy of them: the model may change its output in place.

    All rows of a nested tensor, which cannot be indexed by rows.
    """
    if out.is_nested:
        return None, out
    length = out.shape[-2]
    # An odd step, so that what is wrong in every second, fourth or eighth row does not fall between the rows kept.
    step = -(-length // ROWS) | 1
    rows = (_every if type(out) is torch.Tensor else _every.__wrapped__)(length, step)  # a fake tensor's are fake
    # By a view: `index_select` takes more time to launch than the rest of a call.
    return rows, out.clone() if step == 1 else out[..., (length - 1) % step :: step, :].clone()


@functools.lru_cache(maxsize=256)
def _every(length: int, step: int) -> Int[Tensor, " rows"]:
    """Every step-th of `length` rows, the last included, on the CPU."""
    with torch.inference_mode(False):
        return torch.arange((length - 1) % step, length, step, dtype=torch.int64, device="cpu")


def with_some_rows(record: Record) -> Record:
    """The record with a copy of at most `ROWS` rows of the output; its other tensors by reference."""
    if record.rows is not None:
        return record
    rows, out = some_rows(record.out)
    return replace(record, out=out, rows=rows)


def placed(record: Record, place: Callable[[Tensor], Tensor], keys: bool = True) -> Record:
    """The record with its tensors as `place` returns them, and a copy of at most `ROWS` rows of the output."""
    energies, out, rows = record.energies, record.out, record.rows
    if rows is None:
        rows, out = some_rows(out)
    return replace(
        record,
        energies=energies.map_tensors(place, keys),
        v=place(record.v) if keys else record.v,
        out=place(out),
        rows=rows,
        state=None if record.state is None else place(record.state),
        normalize=record.normalize.map_tensors(place),
    )


def with_short_masks(record: Record, known: dict[int, tuple[Tensor, Mask | None]]) -> Record:
    """The record with masks of T_q × T_k numbers replaced by intervals, two numbers per query, where these are equal.

    `known` has those of masks that were examined before: all layers of a model share one.
    """
    energies = record.energies
    modifiers: list[Modifier] = []
    mask, short = energies.mask, False
    for modifier in energies.modifiers:
        interval = None if modifier.added is None else _interval(modifier.added, known)
        if interval is not None:
            mask, short = interval if mask is None else mask & interval, True
        else:
            modifiers.append(modifier)
    if energies.mask is not None and energies.mask.seen is not None and not short:
        mask = _interval(energies.mask.seen, known)
        mask, short = (mask, True) if mask is not None else (energies.mask, False)
    if not short:
        return record
    return replace(record, energies=replace(energies, modifiers=tuple(modifiers), mask=mask))


def _interval(x: Tensor, known: dict[int, tuple[Tensor, Mask | None]]) -> Mask | None:
    if x.dim() < 2 or x.shape[-2] == 1 or x.shape[-2] * x.shape[-1] < SHORT:
        return None
    if id(x) not in known:
        seen: Tensor | None = x
        if x.dtype != torch.bool:
            # Numbers that are 0 or close a key; any other is a bias.
            seen = x == 0
            seen = seen if bool((seen | (x <= CLOSED)).all()) else None
        known[id(x)] = x, None if seen is None else intervals_of(seen)
    return known[id(x)][1]


def without_unfilled(record: Record, keys: int) -> Record:
    """The record with a key buffer of the maximum length cut to its first `keys`, if the mask closes all others."""
    energies, mask = record.energies, record.energies.mask
    seen = None if mask is None else mask.seen
    closed = seen is not None and seen.shape[-1] == energies.keys and not bool(seen[..., keys:].any())
    biases = [x.added for x in energies.modifiers if x.added is not None and x.added.shape[-1] == energies.keys]
    # A row whose every key is closed by a number attends to all of them alike, also to those that would be cut.
    closed = closed or any(
        bool((x[..., keys:] <= CLOSED).all()) and bool((x[..., :keys] > CLOSED).any(-1).all()) for x in biases
    )
    if not closed:
        return record

    def cut(x: Tensor) -> Tensor:
        return x[..., :keys] if x.shape[-1] > 1 else x

    modifiers = tuple(x if x.added is None else x.map_tensors(cut) for x in energies.modifiers)
    mask = mask if mask is None or seen is None else mask.map_tensors(cut)
    return replace(
        record,
        energies=replace(energies, b=energies.b[..., :keys, :], modifiers=modifiers, mask=mask),
        v=record.v[..., :keys, :],
    )
