"""Call: what one module attended to, over one forward pass or over all steps of a generation."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...attention import Weights
from ...attention.tensor_versions import ChangedInPlaceError, TensorVersions
from .attention_sinks import SinkWeights
from .generation_steps import joined_mask, joined_modifiers
from .record import fixed_of, placed, without_unfilled

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Mask, Normalizer
    from ...attention.energies.energy_matrix import EnergyMatrix
    from ...attention.energies.modifiers import Modifier
    from .record import After, Record

    Source = tuple[StorageWeakRef, int, tuple[int, ...], object]

BUDGET = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far weights may be off by rounding, as a share of what depends on them: of the output less the mean value."""
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
"""What rounding the output itself adds, as a share of all of it."""
CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec|multihead_attn|memory|source")


@dataclass(slots=True, eq=False)
class Step:
    """The queries of one forward pass, and the keys they could see: `keys` of them, from the `first` of all on."""

    q: Float[Tensor, "*batch q d"]
    first: int
    keys: int
    mask: Mask | None
    modifiers: tuple[Modifier, ...]
    state: Float[Tensor, "*batch q"] | None
    rows: Int[Tensor, " rows"]
    out: Float[Tensor, "*batch rows d_v"]


class Faith(NamedTuple):
    """How far W·v is from what the model computed, and how far rounding may take it; None where it cannot be known.

    `budget` is of the same call: where all values are much alike, any weights give nearly the same output, so a wrong
    mask moves it little, and less is allowed.
    """

    error: float | None
    budget: float
    word: str = ""
    """Why it cannot be known, or that it was read from a trace."""
    lost: bool = False
    """What the weights depend on was changed since, so they cannot be known any more either."""

    @property
    def kept(self) -> bool | None:
        """Whether what is shown is what was computed; None where there is nothing to tell by."""
        if self.error is None:
            return False if self.lost else None
        return self.error <= self.budget


class Call:
    """The attention of one module: `call.weights` answers, `call.head(5)` is one head of it.

    Rows are queries: those of the prompt first, then one for each token generated.
    """

    def __init__(self, name: str, record: Record | Callable[[], Record], given: Record | None = None) -> None:
        """`record`, or what works it out when somebody asks. `given` is the model's own where `record` has copies."""
        self.name = name
        self._source = None if given is None else _source(given)
        self._deferred = None if not callable(record) else record
        self._steps: list[Step] = []
        self._weights: Weights | None = None
        self._faith: Faith | None = None
        self._measured_at: list[object] = []
        if not callable(record):
            self._begin(record)

    def _begin(self, record: Record) -> None:
        self._origin, self._dropout, self._normalize = record.origin, record.dropout, record.normalize
        self._sinks, self._after, self._cross = record.sinks, record.after, record.cross
        self._measured, self._budget, self._counted = record.measured, record.budget, record.steps
        self._energies = record.energies
        self._k, self._v = [record.energies.b], [record.v]
        self._total = record.energies.keys
        self._steps = [_step(record, 0)]
        self._versions = [TensorVersions(fixed_of(record))]
        self._key_versions = TensorVersions([record.energies.b, record.v])

    def _ready(self) -> None:
        if self._deferred is not None:
            self._begin(self._deferred())
            self._deferred = None

    # What it is

    @property
    def origin(self) -> str:
        """What computed it: the function, and its kernel where that is known."""
        self._ready()
        return self._origin

    @property
    def kind(self) -> str:
        """ "self" where queries and keys come from the same place, else "cross"."""
        self._ready()
        first = self._steps[0]
        if self._cross is not None:
            return "cross" if self._cross else "self"
        causal = first.mask is not None and first.mask.causal_offset is not None
        apart = first.q.shape[-2] != first.keys and not causal
        return "cross" if CROSS.search(self.name.lower()) or apart else "self"

    @property
    def steps(self) -> list[int]:
        """How many queries each forward pass brought: the prompt's, then usually one for each token."""
        self._ready()
        return self._counted or [step.q.shape[-2] for step in self._steps]

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k], usually [B, heads, T_q, T_k]."""
        self._ready()
        return (*self._energies.batch, sum(step.q.shape[-2] for step in self._steps), self._total)

    @property
    def heads(self) -> int:
        return self.shape[-3] if len(self.shape) > 2 else 1

    @property
    def layer(self) -> int | None:
        """The first number in the name: "encoder.layer.3.attention" is layer 3."""
        return layer_of(self.name)

    def __repr__(self) -> str:
        return f"Call({self.name}, {self.kind}, {list(self.shape)}, {self.origin})"

    # What can be asked

    @property
    def weights(self) -> Weights:
        """Every question `Weights` answers, over [*batch, T_q, T_k]."""
        self._ready()
        if self._weights is None:
            self._check_unchanged()
            self._weights = self._made(*self._joined())
        return self._weights

    def _check_unchanged(self) -> None:
        # A key/value buffer is filled in place from step to step.
        versions = self._versions if len(self._steps) > 1 else [*self._versions, self._key_versions]
        if any(x.changed() for x in versions):
            raise ChangedInPlaceError(
                f"{self.name} attended, and what it attended with (queries, keys, values, masks, biases or learned "
                "parts) was changed in place since, so the weights it used can no longer be computed; "
                'watch(model, keep="cpu") copies it in time'
            )

    def forget(self) -> None:
        """Let go of what the last questions left behind (the row state, shared heads repeated): it comes again."""
        self._weights = None

    def head(self, n: int, entry: int = 0) -> Weights:
        """One head of one entry of the batch."""
        weights = self.weights
        lead = len(weights.shape) - 2
        return weights[(*(0,) * (lead - 2), entry, n)[-lead:] if lead else ()]

    @property
    def v(self) -> Float[Tensor, "*batch k d_v"]:
        """The values, as many heads as the keys have."""
        self._ready()
        if len(self._v) > 1:
            self._v = [torch.cat(self._v, dim=-2)]
        return self._v[0]

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """The energy of each head's attention sink, where the model has learned one."""
        self._ready()
        return self._sinks

    @property
    def dropout(self) -> float:
        """The share of weights that was dropped after the softmax. The weights shown are those before."""
        self._ready()
        return self._dropout

    @property
    def normalize(self) -> Normalizer:
        self._ready()
        return self._normalize

    @property
    def after(self) -> After | None:
        """What the model did to W·v before the output that was seen."""
        self._ready()
        return self._after

    @property
    def measured(self) -> bool:
        """Whether fidelity was measured before, since what it takes is not kept."""
        self._ready()
        return self._measured is not None

    def outputs(self) -> tuple[Int[Tensor, " rows"], Float[Tensor, "*batch rows d_v"]]:
        """Which queries' outputs were kept, and those: what the model computed."""
        self._ready()
        begins = torch.tensor([0, *(step.q.shape[-2] for step in self._steps[:-1])]).cumsum(0).tolist()
        rows = torch.cat([step.rows + begin for step, begin in zip(self._steps, begins, strict=True)])
        return rows, torch.cat([step.out for step in self._steps], dim=-2)

    @torch.no_grad()
    def fidelity(self) -> Faith:
        """|W·v − out| / |out| of the worst head, on the real outputs of up to 64 queries of each step.

        Measured once, and again where something it depends on was changed in place since. Tensors made in
        `torch.inference_mode` do not count their changes: with those it is measured whenever it is asked.
        """
        if self._faith is None or self._measured_at != self._changes():
            self.forget()
            try:
                self._faith = self._measure()
            except ChangedInPlaceError:
                self._faith = Faith(None, 0.0, "changed in place since", lost=True)
            except Exception as error:  # the table of calls shows it, and the other calls
                self._faith = Faith(None, 0.0, f"{type(error).__name__}: {error}", lost=True)
            self._measured_at = self._changes()
        return self._faith

    def _changes(self) -> list[object]:
        """How often each tensor kept was changed; equal to no other list where one of them does not count."""
        if not self._steps:  # it could not be worked out
            return []
        kept = [*(x for part in self._versions for x in part.tensors), *self._k, *self._v]
        return [object() if x.is_inference() else x._version for x in kept]

    def _measure(self) -> Faith:
        rows, out = self.outputs()
        budget = BUDGET[out.dtype]
        if self._measured is not None:
            # Of a trace, whose steps are counted, it is what somebody wrote there.
            return Faith(self._measured, self._budget or budget, "" if self._counted is None else "recorded")
        self._check_unchanged()
        if self._dropout:
            return Faith(None, budget, f"dropout {self._dropout:g}")
        if not out.numel():
            return Faith(None, budget, "output not seen")
        part, v = self.weights.rows(rows.tolist()), self.v
        found = part.stats(fidelity=(v, out), on=range(self._total)) if self._after is None else None
        mean = v.mean(dim=-2, dtype=torch.float32)  # [*batch, D_v]: the output of weights that tell no key from another
        if self._energies.groups > 1 and mean.shape[-2] != part.shape[-3]:
            mean = mean.repeat_interleave(self._energies.groups, dim=-2)
        if found is not None:
            assert found.fidelity is not None
            assert found.on is not None
            plain = found.on[..., None].float() * mean[..., None, :]
            error, whole = found.fidelity, out.float().norm(dim=(-2, -1))
            moved = (out.float() - plain).norm(dim=(-2, -1))
        else:
            assert self._after is not None
            w, at = part.tile(slice(None), slice(None)).to(v.dtype), rows.to(out.device)
            error = (self._after(w @ v, at) - out).norm() / out.norm()
            # What attention contributes, behind a residual and all that follows it.
            plain = self._after((w.sum(dim=-1, keepdim=True) * mean[..., None, :].to(v.dtype)), at)
            whole, moved = out.float().norm(), (out.float() - plain.float()).norm()
        allowed = (budget * moved / whole.clamp_min(1e-30)).clamp_max(budget) + ROUNDING[out.dtype]
        worst = int((error / allowed).nan_to_num(torch.inf).argmax())
        return Faith(float(error.flatten()[worst]), float(allowed.flatten()[worst]))

    # How steps become one

    def goes_on(self, record: Record, place: Callable[[Tensor], Tensor]) -> bool:
        """Whether this is the next step of the same generation; if so it is added.

        The new keys must be the old ones and those of the new queries, of which the first and the last row that both
        have are compared; or the old ones alone, of which all are, unless they lie in a buffer that is being filled.
        Should the rest differ all the same, fidelity says so.
        """
        if self._deferred is not None or not self._same_kind(record):
            return False
        if record.energies.keys > self._total + record.energies.queries:
            record = without_unfilled(record, self._total + record.energies.queries)
        k, v, fresh, source = record.energies.b, record.v, record.energies.queries, _source(record)
        old = record.energies.keys - fresh
        again = record.energies.keys == self._total and fresh == 1
        if again and self._same_buffer(source) and _closes(record) and self._starts(k, v):
            # Made for the longest text and filled in place: what is new in it, the steps before did not see.
            if source != self._source:
                self._k, self._v = [place(k)], [place(v)]
        elif again and (source == self._source or self._is(k, v)):
            pass  # keys of another sequence, as they were
        elif 0 < old <= self._total and self._has(k, v, old):
            self._k.append(place(k[..., old:, :].clone()))
            self._v.append(place(v[..., old:, :].clone()))
            self._total += fresh
        else:
            return False
        self._source = source
        record = placed(record, place, keys=False)
        self._steps.append(_step(record, self._total - record.energies.keys))
        self._versions.append(TensorVersions(fixed_of(record)))
        self._weights = self._faith = None
        return True

    def _same_kind(self, record: Record) -> bool:
        new, old = record.energies, self._energies
        queries = sum(self.steps)
        return (
            new.batch == old.batch
            and new.groups == old.groups
            and new.b.shape[:-2] == old.b.shape[:-2]
            and type(new.form) is type(old.form)
            and new.form.settings() == old.form.settings()
            and [type(x) for x in new.modifiers] == [type(x) for x in old.modifiers]
            and all(x.continues(first, queries) for x, first in zip(new.modifiers, old.modifiers, strict=True))
            and type(record.normalize) is type(self._normalize)
            and record.after is None
            and record.measured is None
        )

    def _has(self, k: Tensor, v: Tensor, old: int) -> bool:
        """Whether the first `old` of these are the last `old` of those kept, by the look of two of them.

        Of keys and values: where only energies were told, keys stand for their places, and those are all alike.
        """
        return all(
            _equal(new[..., old - 1, :], kept[-1][..., -1, :]) and _equal(new[..., 0, :], _row(kept, self._total - old))
            for new, kept in ((k, self._k), (v, self._v))
        )

    def _is(self, k: Tensor, v: Tensor) -> bool:
        """Whether these are the ones kept, all of them."""
        return all(
            _equal(part, chunk)
            for new, kept in ((k, self._k), (v, self._v))
            for part, chunk in zip(new.split([x.shape[-2] for x in kept], dim=-2), kept, strict=True)
        )

    def _same_buffer(self, source: tuple[Source, Source]) -> bool:
        return self._source is not None and [x[:3] for x in source] == [x[:3] for x in self._source]

    def _starts(self, k: Tensor, v: Tensor) -> bool:
        return _equal(k[..., 0, :], _row(self._k, 0)) and _equal(v[..., 0, :], _row(self._v, 0))

    def _joined(self) -> tuple[EnergyMatrix, Tensor | None]:
        steps = self._steps
        if len(steps) == 1:
            return self._energies, steps[0].state
        if len(self._k) > 1:
            self._k = [torch.cat(self._k, dim=-2)]
        energies = replace(
            self._energies,
            a=torch.cat([step.q for step in steps], dim=-2),
            b=self._k[0],
            mask=joined_mask(steps, self._energies.batch, self._total),
            modifiers=joined_modifiers(steps, self._total),
        )
        states = [step.state for step in steps]
        known = [x for x in states if x is not None]
        return energies, torch.cat(known, dim=-1) if len(known) == len(states) else None

    def _made(self, energies: EnergyMatrix, state: Tensor | None) -> Weights:
        if self._sinks is not None:
            return SinkWeights(energies, self._sinks, state)
        return Weights(energies, self._normalize, state)


def _step(record: Record, first: int) -> Step:
    energies, rows = record.energies, record.rows
    if rows is None:
        rows = torch.arange(energies.queries)
    return Step(energies.a, first, energies.keys, energies.mask, energies.modifiers, record.state, rows, record.out)


def _row(chunks: list[Tensor], at: int) -> Tensor:
    """Row `at` of chunks that follow each other."""
    for chunk in chunks:
        if at < chunk.shape[-2]:
            return chunk[..., at, :]
        at -= chunk.shape[-2]
    raise IndexError(at)


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.to(b.device), b)


def _source(record: Record) -> tuple[Source, Source]:
    return _source_of(record.energies.b), _source_of(record.v)


def _source_of(x: Tensor) -> Source:
    """Where a tensor lies and how often it was changed: whether a buffer has been filled further.

    An address is not enough where only a copy is kept: another tensor gets it once the first is gone.
    """
    # Inference tensors do not count their changes: each is taken for changed.
    version = object() if x.is_inference() else x._version
    return StorageWeakRef(x.untyped_storage()), int(x.storage_offset()), tuple(x.shape), version


def _closes(record: Record) -> bool:
    """Whether the call closes keys, as it must where its keys are a buffer only partly filled."""
    return record.energies.mask is not None or any(x.added is not None for x in record.energies.modifiers)


def layer_of(name: str) -> int | None:
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None
