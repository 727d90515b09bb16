"""Record: one call of attention, with everything its weights depend on.

AddedProduct: a further product of queries and keys that is added to the scores, computed when somebody asks.

Relative positions have products of their own: q·k + q·r, where r belongs to the distance of query and key (Transformer-
XL, Dai et al. 2019; XLNet, Yang et al. 2019; DeBERTa, He et al. 2021). Older traces have such parts; now the
weights of these models are held as they are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import pad

from ..attention.blocks import TensorVersions
from ..attention.energies import DotForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import causal, dense, window
from ..attention.modifiers import Bias, Modifier, SoftCap
from ..attention.normalizers import Normalizer, Softmax, Unchanged
from .storage import intervals, intervals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.blocks import Batch
    from ..attention.masks import Mask

    After = Callable[[Tensor, Tensor], Tensor]
    """From W·v of some rows, [*batch, rows, D_v], and the indices of these rows, to the output of the model."""
    Source = tuple[StorageWeakRef, int, tuple[int, ...], object]


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


IN_ITS_OWN_CODE = "softmax in its own code"
"""The origin of such a record."""


def record_of_weights(
    weights: Float[Tensor, "*batch q k"],
    v: Float[Tensor, "*batch k d_v"] | None = None,
    out: Float[Tensor, "*batch q d_v"] | None = None,
    origin: str = IN_ITS_OWN_CODE,
    dropout: float = 0.0,
    *,
    reason: str,
) -> Record:
    """A record of weights without queries and keys: energies of 0, with the weights added to them.

    `reason` says why they are kept as a whole.
    """
    w = weights.detach()
    *batch, queries, keys = w.shape
    v = w.new_empty(*batch, keys, 0) if v is None else v.detach()
    out = w.new_empty(*batch, queries, 0) if out is None else out.detach()
    return Record(EnergyMatrix.of_matrix(w), v, out, origin, normalize=Unchanged(), dropout=dropout, matrix=reason)


@dataclass(slots=True, eq=False)
class GenerationStep:
    """The queries of one forward pass, and the keys they could see: `keys` of them, starting at key `first`."""

    q: Float[Tensor, "*batch q d"]
    first: int
    keys: int
    mask: Mask | None
    modifiers: tuple[Modifier, ...]
    state: Float[Tensor, "*batch q"] | None
    rows: Int[Tensor, " rows"]
    out: Float[Tensor, "*batch rows d_v"]


class Generation:
    """The forward passes of one module, usually a single one. Keys and values are kept once for all of them."""

    def __init__(self, record: Record, original: Record | None = None) -> None:
        """`original` has the tensors of the model, if `record` has copies of them."""
        self.first = record
        """The record of the first step. Its `v` becomes that of all steps."""
        self.steps = [_step(record, 0)]
        self.keys = self.steps[0].keys
        self._k, self._v = [record.energies.b], [record.v]
        self._source = None if original is None else _source(original)
        self._versions = [TensorVersions(fixed_of(record))]
        self._changed = record.changed
        self._key_versions = TensorVersions([record.energies.b, record.v], record.key_versions)
        self._keys_fixed = True  # not a buffer, which is filled in place from step to step
        self._queries = record.energies.queries  # of all steps
        self._unchecked: list[tuple[int, int, Tensor, Tensor]] = []

    @property
    def v(self) -> Float[Tensor, "*batch k d_v"]:
        if len(self._v) > 1:
            self._v = [torch.cat(self._v, dim=-2)]
            self.first.v = self._v[0]
        return self._v[0]

    def changed(self) -> bool:
        """Whether something the weights depend on was changed in place."""
        fixed = any(x.changed() for x in self._versions)
        return self._changed or fixed or (self._keys_fixed and self._key_versions.changed())

    def version_counters(self) -> list[object]:
        """The version counter of each tensor kept; an inference tensor has none, and is unequal to itself."""
        tensors = [*(x for versions in self._versions for x in versions.tensors), *self._k, *self._v]
        return [_version(x) for x in tensors]

    def tensors(self) -> list[Tensor]:
        """Everything that is held: queries, keys, values, masks, biases, learned parts, row states, some outputs."""
        fixed = [x for versions in self._versions for x in versions.tensors]
        return [*fixed, *self._k, *self._v, *(step.out for step in self.steps)]

    def outputs(self) -> tuple[Int[Tensor, " rows"], Float[Tensor, "*batch rows d_v"]]:
        """The queries whose outputs were kept, and these outputs: none if the model changed one of them since."""
        starts = torch.tensor([0, *(step.q.shape[-2] for step in self.steps[:-1])]).cumsum(0).tolist()
        rows = torch.cat([step.rows + start for step, start in zip(self.steps, starts, strict=True)])
        out = torch.cat([step.out for step in self.steps], dim=-2)
        return rows, out

    def joined(self) -> tuple[EnergyMatrix, Tensor | None]:
        """The energies of all steps as one matrix, and the row state if every step has it."""
        energies, steps = self.first.energies, self.steps
        if len(steps) == 1:
            return energies, steps[0].state
        self._check_keys()
        if len(self._k) > 1:
            self._k = [torch.cat(self._k, dim=-2)]
        energies = replace(
            energies,
            a=torch.cat([step.q for step in steps], dim=-2),
            b=self._k[0],
            mask=_joined_mask(steps, energies.batch, self.keys),
            modifiers=_joined_modifiers(steps, self.keys),
        )
        states = [step.state for step in steps if step.state is not None]
        return energies, torch.cat(states, dim=-1) if len(states) == len(steps) else None

    def append(self, record: Record, place: Callable[[Tensor], Tensor], trusted: bool = False) -> bool:
        """Append the record if it is the next step of this generation; otherwise return False.

        Its keys must be the old ones and those of the new queries, of which the first and the last common row are
        compared; or the old ones alone, which are all compared, unless they lie in a buffer that is being filled. If
        other rows differ, the fidelity error shows it.

        With `trusted`, another module has compared its keys in this forward pass, and these are compared when somebody
        asks: on a GPU every comparison waits for all that was launched before it.
        """
        if not self._same_kind(record):
            return False
        self._cut_unfilled(record)
        if record.energies.keys > self.keys + record.energies.queries:
            record = without_unfilled(record, self.keys + record.energies.queries)
        k, v, new, source = record.energies.b, record.v, record.energies.queries, _source(record)
        old = record.energies.keys - new
        same_length = record.energies.keys == self.keys and new == 1
        if same_length and self._same_buffer(source) and _closes_keys(record) and self._same_row(k, v, 0, 0):
            # A buffer of the maximum length, filled in place: earlier steps did not see what is new in it.
            if source != self._source:
                self._k, self._v = [place(k)], [place(v)]
                self.first.v = self._v[0]
        elif same_length and (source == self._source or self._same_rows(k, v)):
            pass  # unchanged keys of another sequence
        elif trusted and 0 < old <= self.keys and new == 1:
            k, v = (torch.cat([x[..., :1, :], x[..., old - 1 :, :]], dim=-2) for x in (k, v))
            self._unchecked.append((self.keys - old, self.keys - 1, k, v))
            self._k.append(place(k[..., 2:, :]))
            self._v.append(place(v[..., 2:, :]))
            self.keys += new
        elif (
            0 < old <= self.keys
            and self._same_row(k, v, old - 1, self.keys - 1)
            and self._same_row(k, v, 0, self.keys - old)
        ):
            self._k.append(place(k[..., old:, :].clone()))
            self._v.append(place(v[..., old:, :].clone()))
            self.keys += new
        else:
            return False
        self._source, self._keys_fixed = source, False
        self._append_step(placed(record, place, keys=False), self.keys - record.energies.keys)
        return True

    def extend(self, steps: list[tuple[int, Record]], k: Tensor, v: Tensor) -> None:
        """Append steps whose keys were found to continue these, each with its first key; `k`, `v` are those of all."""
        for first, record in steps:
            if not self._same_kind(record):
                raise ValueError("a step of the generation differs in its settings from the first")
            self._append_step(record, first)
        last = steps[-1][1]
        self.keys, self._k, self._v, self.first.v = k.shape[-2], [k], [v], v
        self._source, self._key_versions = _source(last), TensorVersions([last.energies.b, last.v], last.key_versions)

    def _append_step(self, record: Record, first: int) -> None:
        self.steps.append(_step(record, first))
        self._queries += record.energies.queries
        self._versions.append(TensorVersions(fixed_of(record)))
        self._changed = self._changed or record.changed
        self._keep_worst_error(record)

    def _keep_worst_error(self, record: Record) -> None:
        """Of steps that were proved at once, the first record has the largest error in relation to its budget."""
        first = self.first
        if record.measured is None or record.budget is None or first.measured is None or first.budget is None:
            return
        if not record.measured * first.budget <= first.measured * record.budget:  # also where it is NaN
            first.measured, first.budget = record.measured, record.budget

    def _check_keys(self) -> None:
        """Compare the keys and values of trusted steps with those kept before them."""
        for first, last, k, v in self._unchecked:
            if not all(self._same_row(k, v, new, old) for new, old in ((0, first), (1, last))):
                raise RuntimeError(
                    "the key/value cache was reordered in one layer and not in another, so the steps of this layer "
                    'cannot be joined; watch(model, keep="cpu") compares every layer at once'
                )
        self._unchecked.clear()

    def shorten_masks(self, known: dict[int, tuple[Tensor, Mask | None]]) -> None:
        """Keep a mask of a single step as two numbers per query where that is the same."""
        if len(self.steps) > 1:
            return
        first = with_short_masks(self.first, known)
        if first is not self.first and not self.changed():
            self.first, self.steps = first, [_step(first, 0)]
            self._versions = [TensorVersions(fixed_of(first))]

    def _cut_unfilled(self, record: Record) -> None:
        """Cut keys of the maximum length to those of the first step, if they were computed anew for this record.

        Keys that are projected from a cache of fixed size (multi-head latent attention) lie in no buffer.
        """
        queries = self.steps[0].q.shape[-2]
        if len(self.steps) > 1 or record.energies.keys != self.keys or queries >= self.keys:
            return
        if self._same_buffer(_source(record)) or self._same_rows(record.energies.b, record.v):
            return
        first = without_unfilled(self.first, queries)
        if first is self.first:
            return
        self.first, self.steps = first, [_step(first, 0)]
        self.keys, self._k, self._v = queries, [first.energies.b], [first.v]

    def _same_kind(self, record: Record) -> bool:
        new, old = record.energies, self.first.energies
        return (
            new.batch == old.batch
            and new.groups == old.groups
            and new.b.shape[:-2] == old.b.shape[:-2]
            and type(new.form) is type(old.form)
            and new.form.settings() == old.form.settings()
            and [type(x) for x in new.modifiers] == [type(x) for x in old.modifiers]
            and all(x.continues(first, self._queries) for x, first in zip(new.modifiers, old.modifiers, strict=True))
            and type(record.normalize) is type(self.first.normalize)
            and record.normalize.settings() == self.first.normalize.settings()
            and record.after is None
            # A module that notes what it computed by a softmax: the note replaces the softmax, and does not follow it.
            and (record.origin == IN_ITS_OWN_CODE) is (self.first.origin == IN_ITS_OWN_CODE)
            and (record.measured is None or _is_without_values(record) is _is_without_values(self.first) is True)
        )

    def _same_row(self, k: Tensor, v: Tensor, new: int, old: int) -> bool:
        """Whether row `new` of these keys and values is row `old` of those kept.

        Both are compared: in a record of weights alone all keys are 0.
        """
        return all(_equal(x[..., new, :], _row(kept, old, self.keys)) for x, kept in ((k, self._k), (v, self._v)))

    def _same_rows(self, k: Tensor, v: Tensor) -> bool:
        return all(
            _equal(part, chunk)
            for new, kept in ((k, self._k), (v, self._v))
            for part, chunk in zip(new.split([x.shape[-2] for x in kept], dim=-2), kept, strict=True)
        )

    def _same_buffer(self, source: tuple[Source, Source]) -> bool:
        return self._source is not None and [x[:3] for x in source] == [x[:3] for x in self._source]


def _step(record: Record, first: int) -> GenerationStep:
    energies, rows = record.energies, record.rows
    if rows is None:
        rows = torch.arange(energies.queries)
    return GenerationStep(
        energies.a, first, energies.keys, energies.mask, energies.modifiers, record.state, rows, record.out
    )


def _is_without_values(record: Record) -> bool:
    """Whether the values were left out after the record was proved."""
    return record.v.shape[-1] == 0


def _row(chunks: list[Tensor], at: int, total: int) -> Tensor:
    """Row `at` of the `total` rows of consecutive chunks; the first or the last chunk usually has it."""
    if at < chunks[0].shape[-2]:
        return chunks[0][..., at, :]
    stop = total
    for chunk in reversed(chunks):
        stop -= chunk.shape[-2]
        if at >= stop:
            return chunk[..., at - stop, :]
    raise IndexError(at)


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.to(b.device), b)


def _source(record: Record) -> tuple[Source, Source]:
    """Where keys and values lie and how often they were changed: whether a buffer has been filled further.

    An address is not enough if only a copy is kept: another tensor may get it once the first is freed.
    """
    k, v = (
        (StorageWeakRef(x.untyped_storage()), int(x.storage_offset()), tuple(x.shape), _version(x, version))
        for x, version in zip((record.energies.b, record.v), record.key_versions or (None, None), strict=True)
    )
    return k, v


def _version(x: Tensor, at_call: int | None = None) -> object:
    """The version counter, of an earlier moment if that is given.

    Inference tensors have none: an object equal to no other, so that they count as changed.
    """
    if x.is_inference():
        return object()
    return x._version if at_call is None else at_call


def _closes_keys(record: Record) -> bool:
    """Whether the call masks keys, as it must if its keys are a buffer that is only partly filled."""
    return record.energies.mask is not None or any(x.added is not None for x in record.energies.modifiers)


def _joined_mask(steps: list[GenerationStep], batch: tuple[int, ...], keys: int) -> Mask | None:
    """Every step sees the keys it had, without those that its own mask closes."""
    starts, stops, rules = [], [], []
    for step in steps:
        count = step.q.shape[-2]
        start = torch.full((count,), step.first)
        stop = start + step.keys
        offset = None if step.mask is None else step.mask.causal_offset
        if offset is not None:
            stop = torch.minimum(stop, start + torch.arange(count) + 1 + offset)
        starts.append(start)
        stops.append(stop)
        rules.append(step.mask if offset is None else None)
    whole = intervals(torch.cat(starts), torch.cat(stops), keys)
    if all(rule is None for rule in rules):
        return whole
    device = steps[0].q.device
    blocks = []
    for step, rule in zip(steps, rules, strict=True):
        count = step.q.shape[-2]
        seen = torch.ones(1, 1, dtype=torch.bool, device=device)
        if rule is not None:
            seen = rule.dense(batch, count, step.keys, device)
        blocks.append(_wide(seen, count, step, keys, True))
    closed = dense(_stacked(blocks))
    return closed if whole is None else whole & closed


def _joined_modifiers(steps: list[GenerationStep], keys: int) -> tuple[Modifier, ...]:
    """The biases of all steps, one below the other; 0 at keys that a step did not have, which the mask closes."""
    joined: list[Modifier] = []
    for at, modifier in enumerate(steps[0].modifiers):
        biases = [(step, step.modifiers[at].added) for step in steps]
        blocks = [_wide(bias, step.q.shape[-2], step, keys, 0.0) for step, bias in biases if bias is not None]
        joined.append(Bias(_stacked(blocks)) if blocks else modifier)
    return tuple(joined)


def _wide(x: Tensor, queries: int, step: GenerationStep, keys: int, fill: float) -> Tensor:
    """[..., queries, keys] from what broadcasts to [..., queries, step.keys]."""
    x = x.expand(*x.shape[:-2], queries, step.keys)
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
