"""The steps of a generation: forward passes of one module with a growing key/value cache, joined into one matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import pad

from ...attention import Bias, dense
from ...attention.tensor_versions import TensorVersions
from .call_inputs_and_output import fixed_of, placed, with_short_masks, without_unfilled
from .computed_weights import IN_ITS_OWN_CODE
from .interval_mask import intervals

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Mask
    from ...attention.energies.lazy_energy_matrix import EnergyMatrix
    from ...attention.energies.modifiers import Modifier
    from .call_inputs_and_output import Record

    Source = tuple[StorageWeakRef, int, tuple[int, ...], object]


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
