"""What a call's energies are made of: rounded scores, masks as numbers or intervals, whole matrices of weights.

The masks and biases of a generation: those of its forward passes, one below the other.

AddedProduct: a further product of queries and keys that is added to the scores, computed when somebody asks. Relative
positions have products of their own: q·k + q·r, where r belongs to the distance of query and key (Transformer-XL, Dai
et al. 2019; XLNet, Yang et al. 2019; DeBERTa, He et al. 2021). Older traces have such parts; now the weights of these
models are held as they are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from ..attention.energies import DotForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import causal, dense, window
from ..attention.modifiers import Bias, Modifier, SoftCap
from .storage import intervals, intervals_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.blocks import Batch
    from ..attention.masks import Mask
    from .call import Call


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


def with_short_masks(energies: EnergyMatrix, known: dict[int, tuple[Tensor, Mask | None]]) -> EnergyMatrix:
    """The energies with masks of T_q × T_k numbers replaced by intervals, two numbers per query, where these are equal.

    `known` has those of masks that were examined before: all layers of a model share one.
    """
    modifiers: list[Modifier] = []
    mask, short = energies.mask, False
    for modifier in energies.modifiers:
        interval = None if modifier.added is None else _interval(modifier.added, known)
        if interval is not None:
            mask, short = interval if mask is None else mask & interval, True
        else:
            modifiers.append(modifier)
    if mask is not None and mask.seen is not None and not short:
        interval = _interval(mask.seen, known)
        mask = mask if interval is None else interval
    return replace(energies, modifiers=tuple(modifiers), mask=mask)


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


def without_unfilled(energies: EnergyMatrix, keys: int) -> EnergyMatrix | None:
    """The energies of a key buffer of the maximum length cut to its first `keys`; None unless the others are closed."""
    mask = energies.mask
    seen = None if mask is None else mask.seen
    closed = seen is not None and seen.shape[-1] == energies.keys and not bool(seen[..., keys:].any())
    biases = [x.added for x in energies.modifiers if x.added is not None and x.added.shape[-1] == energies.keys]
    # A row whose every key is closed by a number attends to all of them alike, also to those that would be cut.
    closed = closed or any(
        bool((x[..., keys:] <= CLOSED).all()) and bool((x[..., :keys] > CLOSED).any(-1).all()) for x in biases
    )
    if not closed:
        return None

    def cut(x: Tensor) -> Tensor:
        return x[..., :keys] if x.shape[-1] > 1 else x

    modifiers = tuple(x if x.added is None else x.map_tensors(cut) for x in energies.modifiers)
    mask = mask if mask is None or seen is None else mask.map_tensors(cut)
    return replace(energies, b=energies.b[..., :keys, :], modifiers=modifiers, mask=mask)


def joined_mask(passes: list[Call], keys: int) -> Mask | None:
    """Every forward pass sees the keys it had, without those that its own mask closes."""
    starts, stops, rules = [], [], []
    for step in passes:
        start = torch.full((step.queries,), step.first)
        stop, mask = start + step.keys, step.own.mask
        offset = None if mask is None else mask.causal_offset
        if offset is not None:
            stop = torch.minimum(stop, start + torch.arange(step.queries) + 1 + offset)
        starts.append(start)
        stops.append(stop)
        rules.append(mask if offset is None else None)
    whole = intervals(torch.cat(starts), torch.cat(stops), keys)
    if all(rule is None for rule in rules):
        return whole
    device, batch = passes[0].own.a.device, passes[0].own.batch
    blocks = []
    for step, rule in zip(passes, rules, strict=True):
        seen = torch.ones(1, 1, dtype=torch.bool, device=device)
        if rule is not None:
            seen = rule.dense(batch, step.queries, step.keys, device)
        blocks.append(_wide(seen, step, keys, True))
    closed = dense(_stacked(blocks))
    return closed if whole is None else whole & closed


def joined_modifiers(passes: list[Call], keys: int) -> tuple[Modifier, ...]:
    """The biases of all forward passes, one below the other; 0 at keys that one did not have, which the mask closes."""
    joined: list[Modifier] = []
    for at, modifier in enumerate(passes[0].own.modifiers):
        biases = [(step, step.own.modifiers[at].added) for step in passes]
        blocks = [_wide(bias, step, keys, 0.0) for step, bias in biases if bias is not None]
        joined.append(Bias(_stacked(blocks)) if blocks else modifier)
    return tuple(joined)


def _wide(x: Tensor, step: Call, keys: int, fill: float) -> Tensor:
    """[..., queries, keys] from what broadcasts to [..., queries, step.keys]."""
    x = x.expand(*x.shape[:-2], step.queries, step.keys)
    return pad(x, (step.first, keys - step.first - step.keys), value=fill)


def _stacked(blocks: list[Tensor]) -> Tensor:
    lead = torch.broadcast_shapes(*(block.shape[:-2] for block in blocks))
    return torch.cat([block.expand(*lead, *block.shape[-2:]) for block in blocks], dim=-2)


@dataclass(frozen=True, slots=True, eq=False)
class AddedProduct(Modifier):
    """e_ij + a_i · b_c · scale, where c is j, or the entry of `columns` for the distance of j and i.

    c = columns[j − stride · i + stride · (T_q − 1)]. If it is `transposed`, i and j change places. The product is
    rounded as the model rounded it: `rounding` has the type of each step and the factor of that step. If another
    product was added to this one first, that is `plus`, and `rounding_of_sum` has the steps after it.
    """

    a: Float[Tensor, "*batch q d"]
    b: Float[Tensor, "*batch r d"]
    scale: float
    rounding: Sequence[tuple[str, float]] = ()
    columns: Int[Tensor, " distances"] | None = None
    stride: int = 1
    transposed: bool = False
    plus: AddedProduct | None = None
    rounding_of_sum: Sequence[tuple[str, float]] = ()
    opaque = False

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        rows, columns = (j[:, None], i.squeeze(-1)) if self.transposed else (i, j)
        p = self._product(e.dtype, batch, rows, columns) * self.scale
        p = p.mT if self.transposed else p
        for dtype, factor in self.rounding:
            p = Rounded(dtype, factor)(p, batch, i, j)
        if self.plus is not None:
            p = self.plus(p, batch, i, j)
            for dtype, factor in self.rounding_of_sum:
                p = Rounded(dtype, factor)(p, batch, i, j)
        return e + p

    def _product(self, dtype: torch.dtype, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        """[..., rows, columns] for indices [rows, 1] and [columns]."""
        a = _rows(self.a, batch, i).squeeze(-2).to(dtype)
        if self.columns is None:
            return a @ _rows(self.b, batch, j[None]).squeeze(-3).to(dtype).mT
        every = torch.arange(self.b.shape[-2], device=j.device)
        whole = a @ _rows(self.b, batch, every[None]).squeeze(-3).to(dtype).mT
        index = self.columns[j - self.stride * i + self.stride * (self.a.shape[-2] - 1)]
        return whole.gather(-1, index.expand(*whole.shape[:-1], index.shape[-1]))


def _rows(x: Tensor, batch: Batch, index: Tensor) -> Tensor:
    """The rows of x at these indices, for each entry of the batch. A leading axis of size one is broadcast."""
    own = batch[len(batch) - x.dim() + 2 :]
    lead = tuple(at if n > 1 else torch.zeros_like(at) for n, at in zip(x.shape, own, strict=False))
    return x[(*lead, index)] if lead else x[index]
