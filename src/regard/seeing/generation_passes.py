"""Generations: the forward passes of one call, joined; and masks and modifiers that only recorded calls have.

AddedProduct: a further product of queries and keys that is added to the scores, computed when somebody asks. Relative
positions have products of their own: q·k + q·r, where r belongs to the distance of query and key (Transformer-XL, Dai
et al. 2019; XLNet, Yang et al. 2019; DeBERTa, He et al. 2021). Older traces have such parts; now the weights of these
models are held as they are.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from ..attention.masks import Mask, causal, dense
from ..attention.modifiers import Bias, Modifier
from ..attention.parts import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ..attention.energy_matrix import EnergyMatrix
    from ..attention.masks import Interval
    from ..attention.parts import Batch
    from .call import Call

IN_ITS_OWN_CODE = "softmax in its own code"
"""The origin of a call whose softmax stands in the module."""
CLOSED = -9984.0
"""A bias of this or less closes a key: masks written as numbers have −10⁴ (−9984 in bfloat16), −10⁹, the least number
of their type, or −∞."""
SHORT = 1 << 14
"""Masks of fewer numbers are kept as they are."""


def shares_keys(call: Call, step: Call) -> bool:
    """Whether keys and values begin at the same place in memory: then keeping both takes no more of it."""
    if not (call.k_parts and call.v_parts and step.k_parts and step.v_parts):
        return False
    same: bool = call.k_parts[-1].data_ptr() == step.k_parts[-1].data_ptr()
    return same and call.v_parts[-1].data_ptr() == step.v_parts[-1].data_ptr()


def append(call: Call, step: Call, store: Callable[[Tensor], Tensor] | None = None, trusted: bool = False) -> bool:
    """Append the call if it is the next forward pass of this generation; otherwise return False.

    Its keys must be the old ones and those of the new queries, of which the first and the last common row are
    compared; or the old ones alone, which are all compared, unless they lie in a buffer that is being filled. If
    other rows differ, the fidelity error shows it. `trusted`: another module has compared its keys in this forward
    pass. On a GPU every comparison waits for all that was launched before it.

    With `store` the new rows are kept as copies; otherwise the newest keys, which have the old ones.
    """
    if store is None and _is_next_of_many(call, step) and (trusted or _begins_with(call, step)):
        call.k_parts, call.v_parts, call.total, call.key_versions = (
            step.k_parts,
            step.v_parts,
            step.keys,
            step.key_versions,
        )
        step.k_parts = step.v_parts = []
        call.later.append(step)
        call.renew()
        return True
    if not _is_alike(call, step):
        return False
    if step.keys == call.total or step.keys > call.total + step.queries:
        call.complete()
        step.complete()
        _cut_unfilled(call, step)
        step = _cut(step, call.total + step.queries)
    old = step.keys - step.queries
    if store is None and shares_keys(call, step) and not _is_filled(call, step):
        return False
    if step.keys == call.total and step.queries == 1 and _fills_buffer(call, step):
        # A buffer of the maximum length, filled in place: earlier passes did not see what is new in it.
        if call.sources() != step.sources():
            if store is None:
                call.hold(step.k, step.v, step.key_versions)
            else:
                call.hold(store(step.k), store(step.v))
    elif step.keys == call.total and step.queries == 1 and _has_same_keys(call, step):
        pass  # keys of another sequence
    elif 0 < old <= call.total and (
        (trusted and step.queries == 1) or _same_rows(call, step, (old - 1, call.total - 1), (0, call.total - old))
    ):
        _grow(call, step, old, store)
    else:
        return False
    step.first, call.source = call.total - step.keys, None if store is None else step.sources()
    if store is not None:
        step.place(store, keys=False)
    step.k_parts = step.v_parts = []
    call.later.append(step)
    call.renew()
    errors = [(x.measured, x.budget) for x in (call, step) if x.measured is not None and x.budget]
    if errors:  # the largest in relation to its budget; NaN is larger than any
        call.untold = call.untold and step.untold
        call.measured, call.budget = max(errors, key=lambda x: math.inf if x[0] != x[0] else x[0] / x[1])
    return True


def _is_next_of_many(call: Call, step: Call) -> bool:
    """Whether it is one query more with one key more of a generation that is joined step by step, none asked for yet.

    Every layer comes here for every token: it is written for speed.
    """
    if not call.later or not call.is_pending or not step.is_pending or step.keys != call.total + 1:
        return False
    last, q, k, v = call.later[-1], step.q, step.k_parts[0], step.v_parts[0]
    return (
        q is not None
        and last.q is not None
        and q.shape == last.q.shape
        and q.shape[-2] == 1
        and call.settings is not None
        and call.settings == step.settings
        and call.origin == step.origin
        and len(call.k_parts) == 1
        and call.measured is None
        and k.shape[:-2] == call.k_parts[0].shape[:-2]
        and v.shape[:-2] == call.v_parts[0].shape[:-2]
        and (call.mask is None) is (step.mask is None)
        and (step.mask is None or _adds(call.mask) == _adds(step.mask))
        and step.after is None
    )


def _begins_with(call: Call, step: Call) -> bool:
    """Whether the first and the last row of the keys and values before are those of the step."""
    rows = slice(0, call.total, max(1, call.total - 1))
    same = torch.equal(step.k_parts[0][..., rows, :], call.k_parts[0][..., rows, :])
    return same and torch.equal(step.v_parts[0][..., rows, :], call.v_parts[0][..., rows, :])


def _grow(call: Call, step: Call, old: int, store: Callable[[Tensor], Tensor] | None) -> None:
    """Add the new keys and values; the first `old` of the step are those that were kept last."""
    for own, x in ((call.k_parts, step.k), (call.v_parts, step.v)):
        if store is not None:
            own.append(store(x[..., old:, :].clone()))
            continue
        left = old
        while left and own:
            last = own.pop()
            if last.shape[-2] > left:  # a sliding cache no longer has these
                own.append(last[..., : last.shape[-2] - left, :].clone())
            left -= min(left, last.shape[-2])
        own.append(x)
    call.total += step.queries
    call.key_versions = step.key_versions if store is None else call.versions_of_keys()


def _is_alike(call: Call, step: Call) -> bool:
    """Whether two calls are of the same function with the same settings and shapes but for their lengths."""
    if call.q is None or step.q is None or not call.k_parts or not step.k_parts:
        return False
    pairs = ((call.q, step.q), (call.k_parts[-1], step.k_parts[-1]), (call.v_parts[-1], step.v_parts[-1]))
    same = (
        all(a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-1] for a, b in pairs)
        and step.after is None
        # A module that notes what it computed by a softmax: the note replaces the softmax, and does not follow it.
        and (step.origin == IN_ITS_OWN_CODE) is (call.origin == IN_ITS_OWN_CODE)
    )
    if not same or (call.is_pending and step.is_pending and call.settings is not None):
        return same and call.settings == step.settings and _adds(call.mask) == _adds(step.mask)
    old, new = call.complete().own, step.complete().own
    queries = sum(x.queries for x in call.passes)
    return (
        new.batch == old.batch
        and new.groups == old.groups
        and type(new.form) is type(old.form)
        and new.form.settings() == old.form.settings()
        and [type(x) for x in new.modifiers] == [type(x) for x in old.modifiers]
        and all(x.continues(first, queries) for x, first in zip(new.modifiers, old.modifiers, strict=True))
        and type(step.normalize) is type(call.normalize)
        and step.normalize.settings() == call.normalize.settings()
    )


def _fills_buffer(call: Call, step: Call) -> bool:
    """Whether keys are in the same buffer, and the mask closes some, as it must if that is only partly filled."""
    closes = step.own.mask is not None or any(x.added is not None for x in step.own.modifiers)
    same = [x[:3] for x in call.sources()] == [x[:3] for x in step.sources()]
    return same and closes and _same_rows(call, step, (0, 0))


def _is_filled(call: Call, step: Call) -> bool:
    """Whether a buffer of keys and values in one place of memory may only have been filled further since.

    Every step writes as often as the step before: a cache whose rows were put in another order (for the beams of a
    search, or to remove some) was written to more often. Where there are fingerprints, as many rows differ as are new.
    """
    if call.key_versions == step.key_versions:
        return True
    writes = []
    for before, after in zip(call.key_versions, step.key_versions, strict=True):
        if isinstance(before, int) and isinstance(after, int):
            writes.append(after - before)
        elif isinstance(before, Fingerprint) and isinstance(after, Fingerprint):
            kept = min(before.rows.shape[-1], after.rows.shape[-1])
            differ = before.rows[..., :kept] != after.rows[..., :kept]
            if int(differ.flatten(0, -2).any(0).sum() if differ.dim() > 1 else differ.sum()) > step.queries:
                return False
    same, call.writes = call.writes in (None, writes), writes
    return same


def _has_same_keys(call: Call, step: Call) -> bool:
    if call.sources() == step.sources():
        return True
    return all(
        torch.equal(part.to(own.device), own)
        for parts, x in ((call.k_parts, step.k), (call.v_parts, step.v))
        for part, own in zip(x.split([y.shape[-2] for y in parts], dim=-2), parts, strict=True)
    )


def _same_rows(call: Call, step: Call, *rows: tuple[int, int]) -> bool:
    """Whether these rows of the step's keys and values are those of the keys and values kept."""
    own = ((step.k, call.k_parts), (step.v, call.v_parts))
    pairs = [(x.select(-2, new), _row(parts, old, call.total)) for x, parts in own for new, old in rows]
    if pairs[0][1].is_cuda:  # every comparison waits for the GPU: one for all
        first, second = (torch.cat([x.flatten() for x in side]) for side in zip(*pairs, strict=True))
        return torch.equal(first, second)
    return all(torch.equal(x.to(y.device), y) for x, y in pairs)


def _cut(call: Call, keys: int) -> Call:
    """The call with a key buffer of the maximum length cut to its first `keys`, if the mask closes all others."""
    shorter = without_unfilled(replace(call.own, b=call.k), keys) if keys < call.keys else None
    if shorter is None:
        return call
    shorter_call, v = copy(call), call.v[..., :keys, :]
    shorter_call.keys = shorter_call.total = keys
    shorter_call.take(shorter)
    shorter_call.v = v
    return shorter_call


def _cut_unfilled(call: Call, step: Call) -> None:
    """Cut keys of the maximum length to those of the first pass, if they were computed anew for this step.

    Keys that are projected from a cache of fixed size (multi-head latent attention) lie in no buffer.
    """
    if call.later or step.keys != call.total or call.queries >= call.total:
        return
    same_buffer = [x[:3] for x in call.sources()] == [x[:3] for x in step.sources()]
    if not same_buffer and not _has_same_keys(call, step):
        vars(call).update(vars(_cut(call, call.queries)))


def _adds(mask: Tensor | None) -> bool:
    """Whether it is a bias: numbers that are added, not booleans."""
    return mask is not None and mask.dtype != torch.bool


def _row(parts: list[Tensor], at: int, total: int) -> Tensor:
    """Row `at` of the `total` rows of consecutive parts; the first or the last part usually has it."""
    if at < parts[0].shape[-2]:
        return parts[0].select(-2, at)
    stop = total
    for part in reversed(parts):
        stop -= part.shape[-2]
        if at >= stop:
            return part.select(-2, at - stop)
    raise IndexError(at)


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


class Intervals(Mask):
    """start_i ≤ j < stop_i: the keys that each step sees in a growing key/value cache.

    The same for every entry and head, [T_q], or different in the first leading dimensions, [B, T_q].
    """

    def __init__(self, start: Int[Tensor, "*batch q"], stop: Int[Tensor, "*batch q"]) -> None:
        self.start, self.stop = start.long(), stop.long()

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if self.start.shape[-1] != queries:
            raise ValueError(f"intervals for {self.start.shape[-1]} queries, there are {queries}")

    def _of(self, batch: Batch, i: Tensor) -> Interval:
        at = (*batch[: self.start.dim() - 1], i)
        return self.start.to(i.device)[at], self.stop.to(i.device)[at]

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        start, stop = self._of(batch, i)
        return (start <= j) & (j < stop)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        start, stop = self._of(batch, i)
        return start.clamp(0, keys), stop.clamp(0, keys)

    def __repr__(self) -> str:
        return f"Intervals({self.start.shape[-1]} queries)"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.start.shape[:-1]), self.start.shape[-1], int(self.stop.max())


def intervals_of(mask: Bool[Tensor, "*batch q k"]) -> Mask | None:
    """The same mask by two numbers per query; None if some query sees no key, or keys with a gap between them.

    Also None if heads have masks of their own.
    """
    if mask.dim() > 4 or (mask.dim() == 4 and mask.shape[1] > 1) or (mask.dim() == 3 and mask.shape[0] > 1):
        return None
    seen = mask[:, 0] if mask.dim() == 4 else mask.reshape(1, *mask.shape[-2:])
    keys = seen.shape[-1]
    count = seen.sum(-1)
    start = seen.to(torch.uint8).argmax(-1)
    last = keys - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)
    if not bool(((count > 0) & (last - start + 1 == count)).all()):
        return None
    start, stop = start.cpu(), (last + 1).cpu()
    if len(start) == 1:
        simplest = intervals(start[0], stop[0], keys)
        return Intervals(start[0], stop[0]) if simplest is None else simplest
    return Intervals(start, stop)


def intervals(start: Int[Tensor, " q"], stop: Int[Tensor, " q"], keys: int) -> Mask | None:
    """The simplest equal mask: None if every query sees all keys, `causal` if it is causal."""
    if bool((start == 0).all()):
        if bool((stop >= keys).all()):
            return None
        offset = int(stop[0]) - 1
        if torch.equal(stop, torch.arange(len(stop)) + 1 + offset):
            return causal(offset)
    return Intervals(start, stop)


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
