"""Record: one call of attention as it was made, with everything its weights depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ...attention import Bias, SoftCap, Softmax, causal, dense, window
from ...attention.energies.energy_forms import DotForm
from ...attention.energies.energy_matrix import EnergyMatrix
from .even_sample import evenly_spaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Mask, Normalizer
    from ...attention.energies.modifiers import Modifier

    After = Callable[[Tensor, Tensor], Tensor]
    """From W·v of some rows, [*batch, rows, D_v], and which rows they are, to what the model shows of them."""

_SOFTMAX = Softmax()
ROWS = 64
"""Outputs kept of one step, evenly spread over its queries: what fidelity is measured on."""
CLOSED = -9984.0
"""A bias of this or less closes a key: masks written as numbers have −10⁴ (−9984 in bfloat16), −10⁹, the least number
of their type, or −∞."""


@dataclass(slots=True, eq=False)
class Record:
    """What went into a call and what came out, by reference: nothing is copied, nothing computed."""

    energies: EnergyMatrix
    v: Float[Tensor, "*batch k d_v"]
    out: Float[Tensor, "*batch q d_v"]
    origin: str
    normalize: Normalizer = _SOFTMAX
    state: Float[Tensor, "*batch q"] | None = None
    """The row state, where the kernel left it."""
    sinks: Float[Tensor, " heads"] | None = None
    dropout: float = 0.0
    cross: bool | None = None
    """Whether keys come from elsewhere than queries, where that is known."""
    rows: Int[Tensor, " rows"] | None = None
    """Which queries `out` belongs to; None for all of them."""
    measured: float | None = None
    """Fidelity as it was measured, where what it takes to measure it is no longer there (a trace)."""
    budget: float | None = None
    """And how far off it might be, where that is known too."""
    steps: list[int] | None = None
    """How many queries each forward pass brought, where they are already joined (a trace)."""
    after: After | None = None
    """Where the output of attention itself is never seen: what the model did to it before `out`, row by row."""


def dot_energies(
    q: Float[Tensor, "*batch q d"],
    k: Float[Tensor, "*batch_k k d"],
    scale: float | None = None,
    *,
    masks: tuple[Tensor | Mask | None, ...] = (),
    softcap: float | None = None,
) -> EnergyMatrix:
    """softcap(q·k·scale), then each mask: a rule or booleans that close keys, numbers that are added."""
    q, k = q.detach(), k.detach()
    groups = 1
    if q.dim() >= 4 and k.dim() >= 4 and k.shape[-3] not in (1, q.shape[-3]):
        groups = q.shape[-3] // k.shape[-3]
    batch, lead = tuple(q.shape[:-2]), tuple(k.shape[:-2]) if groups == 1 else (*k.shape[:-3], q.shape[-3])
    if batch != lead:
        batch = tuple(torch.broadcast_shapes(batch, lead))
    modifiers: list[Modifier] = [] if softcap is None else [SoftCap(softcap)]
    rule: Mask | None = None
    for mask in masks:
        if mask is None:
            continue
        if isinstance(mask, torch.Tensor) and mask.dtype != torch.bool:
            # The same object where it can be: a mask that every layer is given is kept once.
            modifiers.append(Bias(mask.detach() if mask.requires_grad else mask))
            continue
        closed = dense(mask) if isinstance(mask, torch.Tensor) else mask
        rule = closed if rule is None else rule & closed
    form = DotForm(q.shape[-1] ** -0.5 if scale is None else float(scale))
    return EnergyMatrix(q, k, form, batch, tuple(modifiers), rule, groups)


def causal_window(queries: int, keys: int, is_causal: bool, size: int | None) -> Mask | None:
    """The masks that flash kernels take as flags: the last query sees the last key, and `size` keys back."""
    offset = keys - queries
    rule = causal(offset) if is_causal else None
    if size is None:
        return rule
    near = window(size, offset=offset)
    return near if rule is None else rule & near


def tensors_of(record: Record) -> list[Tensor]:
    """Everything that is kept of a call, most of it alive anyway while the model runs."""
    return [*fixed_of(record), record.energies.b, record.v]


def fixed_of(record: Record) -> list[Tensor]:
    """What the weights depend on besides keys and values, which a cache may fill further in place."""
    energies = record.energies
    references = [x for x in energies.references() if x is not energies.b]
    return [*references, *energies.learned(), *(x for x in (record.state, record.sinks) if x is not None)]


def some_rows(out: Float[Tensor, "*batch q d_v"]) -> tuple[Int[Tensor, " rows"], Float[Tensor, "*batch rows d_v"]]:
    """Which rows of an output are kept, and a copy: the output is the model's, which may scale it or add to it."""
    rows = evenly_spaced(out.shape[-2], ROWS)
    return rows, out.index_select(-2, rows.to(out.device)) if len(rows) < out.shape[-2] else out.clone()


def placed(record: Record, place: Callable[[Tensor], Tensor], keys: bool = True) -> Record:
    """The same call with its tensors where `place` puts them, and of its output a copy of at most `ROWS` rows."""
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
        sinks=None if record.sinks is None else place(record.sinks),
    )


def without_unfilled(record: Record, keys: int) -> Record:
    """A buffer allocated for the longest text, cut to the keys it holds so far, where the mask closes all others."""
    energies, mask = record.energies, record.energies.mask
    seen = None if mask is None else mask.seen
    closed = seen is not None and seen.shape[-1] == energies.keys and not bool(seen[..., keys:].any())
    biases = [x.added for x in energies.modifiers if x.added is not None and x.added.shape[-1] == energies.keys]
    closed = closed or any(bool((x[..., keys:] <= CLOSED).all()) for x in biases)
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
