"""The recorder of a watch: what a tap keeps of a call while the model runs; calls are made of it when somebody asks.

While the model runs, one `CapturedCall` is appended: references, version counters and some rows of the output. Only
what later calls depend on is decided at once: whether keys are those of a cache that grew, so that the old ones need
not be kept. Names, masks, steps of a generation and weights are the work of `settle`.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..attention.blocks import version_of
from .call import Call
from .generation import IN_ITS_OWN_CODE, placed, some_rows, tensors_of, with_some_rows
from .modules import ModuleDepths
from .storage import TensorStorage, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int

    from ..attention.masks import Mask
    from .call import GraphOutput
    from .generation import Record

MATRICES = 8 << 30
"""Bytes of whole weight matrices that a watch without a limit of its own holds: of models that compute their weights in
their own code, whose queries and keys are not known."""
LONG_MASKS = 1 << 26
"""Masks of more bytes than this, all together, are shortened when the watch closes; others when somebody asks."""


@dataclass(slots=True, eq=False)
class CapturedCall:
    """References to the tensors of a call without their graph, and how often each was changed.

    `settings` are equal for calls that may be steps of one generation; None if only their records can tell. `details`
    is anything else that `make` needs. `learned` are further tensors that the weights depend on.
    """

    make: Callable[[CapturedCall], Record]
    q: Float[Tensor, "*batch q d"]
    k: Float[Tensor, "*batch_k k d"]
    v: Float[Tensor, "*batch_k k d_v"]
    out: Float[Tensor, "*batch q d_v"]
    """The output, of which a copy of some rows is kept."""
    mask: Tensor | None = None
    state: Tensor | None = None
    learned: tuple[Tensor, ...] = ()
    settings: tuple[Any, ...] | None = None
    details: Any = None
    rows: Int[Tensor, " rows"] | None = field(init=False)
    """The queries that `out` belongs to; None for all of them."""
    address: int = field(init=False)
    queries: int = field(init=False)
    keys: int = field(init=False)
    key_versions: tuple[int | None, int | None] = field(init=False)
    _fixed_versions: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        if self.out.requires_grad or self.q.requires_grad or self.k.requires_grad or self.v.requires_grad:
            self.q, self.k, self.v, self.out = self.q.detach(), self.k.detach(), self.v.detach(), self.out.detach()
            self.state = None if self.state is None else self.state.detach()
        if self.mask is not None and self.mask.requires_grad:
            self.mask = self.mask.detach()
        self.queries, self.keys = self.q.size(-2), self.k.size(-2)
        self.address = self.out.data_ptr()
        self.rows, self.out = some_rows(self.out)
        self.key_versions = version_of(self.k), version_of(self.v)
        self._fixed_versions = [version_of(x) for x in self._fixed()]

    def _fixed(self) -> list[Tensor]:
        """What the weights depend on, without keys and values."""
        return [x for x in (self.q, self.state, self.mask, *self.learned) if x is not None]

    def tensors(self) -> list[Tensor]:
        """Everything that is held, without the rows of the output."""
        return [*self._fixed(), self.k, self.v]

    def record(self) -> Record:
        """The record, which says whether a tensor was changed in place since the call."""
        record = self.make(self)
        record.changed = self._fixed_versions != [version_of(x) for x in self._fixed()]
        record.key_versions = self.key_versions
        return record


class CapturedSteps:
    """Calls of one module whose keys contain those of the call before: only the newest keys and values are kept.

    Usually a single call. A key/value cache that is copied to a longer tensor at every step, or slides, makes more.
    """

    def __init__(self, name: str, call: CapturedCall, ablated: str) -> None:
        self.name, self.ablated, self.calls = name, ablated, [call]
        self._left: tuple[tuple[Tensor, Tensor], ...] = ()
        """Keys and values that a sliding cache no longer has."""
        self.total = call.keys
        """The number of keys of all calls."""

    def may_continue(self, call: CapturedCall) -> bool:
        """Whether the call may be a step after these, by its lengths alone."""
        return call.keys > call.queries or (call.queries == 1 and call.keys == self.total)

    def shares_keys(self, call: CapturedCall) -> bool:
        """Whether keys and values begin at the same place in memory: then keeping the call takes no more of it."""
        last = self.calls[-1]
        return call.k.data_ptr() == last.k.data_ptr() and call.v.data_ptr() == last.v.data_ptr()

    def append(self, call: CapturedCall, trusted: bool) -> bool | None:
        """Append the call if its keys are those of the last call, without the first ones, and those of new queries.

        The first and the last common row are compared, unless the call is trusted. None if more must be compared.
        """
        last, old = self.calls[-1], call.keys - call.queries
        left = last.keys - old
        if old <= 0 or left < 0 or not _same_kind(self.calls[0], call):
            return None
        if call.queries == 1 and call.keys == self.total and _same_rows(last, call, (last.keys - 1, call.keys - 1)):
            return None  # perhaps unchanged keys of another sequence
        if not trusted and not _same_rows(last, call, (left, 0), (last.keys - 1, old - 1)):
            return False
        if left:
            self._left += ((last.k.narrow(-2, 0, left).clone(), last.v.narrow(-2, 0, left).clone()),)
        last.k = last.v = None  # type: ignore[assignment]
        self.calls.append(call)
        self.total += call.queries
        return True

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """All keys and values."""
        last = self.calls[-1]
        if not self._left:
            return last.k, last.v
        k, v = zip(*self._left, (last.k, last.v), strict=True)
        return torch.cat(k, dim=-2), torch.cat(v, dim=-2)

    def records(self, k: Tensor, v: Tensor) -> list[tuple[int, Record]]:
        """Records of all calls, each with its first key; `k` and `v` are all keys and values."""
        records, total = [], self.calls[0].keys
        for at, call in enumerate(self.calls):
            total += call.queries if at else 0
            first = total - call.keys
            call.k, call.v = k.narrow(-2, first, call.keys), v.narrow(-2, first, call.keys)
            records.append((first, call.record()))
        return records


def _same_kind(a: CapturedCall, b: CapturedCall) -> bool:
    """Whether two calls are of the same function with the same settings and shapes but for their lengths."""
    return (
        a.settings is not None
        and a.make is b.make
        and a.settings == b.settings
        and _adds(a.mask) == _adds(b.mask)
        and a.q.shape[:-2] == b.q.shape[:-2]
        and a.q.shape[-1] == b.q.shape[-1]
    )


def _adds(mask: Tensor | None) -> bool:
    """Whether it is a bias: numbers that are added, not booleans."""
    return mask is not None and mask.dtype != torch.bool


def _same_rows(a: CapturedCall, b: CapturedCall, *rows: tuple[int, int]) -> bool:
    """Whether these rows of keys and values of two calls are equal."""
    if a.k.shape[:-2] != b.k.shape[:-2] or a.k.shape[-1] != b.k.shape[-1] or a.v.shape[-1] != b.v.shape[-1]:
        return False
    pairs = [(x.select(-2, i), y.select(-2, j)) for x, y in ((a.k, b.k), (a.v, b.v)) for i, j in rows]
    if a.k.is_cuda:  # every comparison waits for the GPU: one for all
        first, second = (torch.cat([x.flatten() for x in side]) for side in zip(*pairs, strict=True))
        return torch.equal(first, second)
    return all(torch.equal(x, y) for x, y in pairs)


class DeferredCall(NamedTuple):
    """A call whose record is computed when it is needed, from inputs that `make` holds."""

    name: str
    make: Callable[[], Record]
    ablated: str
    tensors: tuple[Tensor, ...]
    """What `make` keeps alive."""


class CallRecorder:
    """Collects the calls of one watch."""

    def __init__(
        self, storage: TensorStorage | None = None, depths: ModuleDepths | None = None, gradients: bool = False
    ) -> None:
        """With `gradients`, the gradient of each output is kept; its hook needs the call at once."""
        self.gradients = gradients
        self.storage = TensorStorage(None, None) if storage is None else storage
        self._at_once = self.storage.copies or gradients or not self.storage.values
        self.depths = ModuleDepths([]) if depths is None else depths
        self.calls: list[Call] = []
        self.missed: list[str] = []
        self.advice = ""
        self._lock = threading.RLock()
        self._pending: list[CapturedSteps | DeferredCall] = []
        self._open: dict[str, CapturedSteps] = {}  # the pending steps of each module that may continue
        self._last_calls: dict[str, Call] = {}  # those of modules whose calls are settled
        self._last_written: tuple[str, int, Call, Call | None] | None = None
        self._pass: dict[str, bool] = {}  # the modules of this forward pass, and whether each continued its call
        self._masks: dict[int, int] = {}  # bytes of masks, by id
        self._over_limit = 0
        self._matrices = 0  # bytes
        self._unseen: dict[str, str] = {}
        self._advise: Callable[[], str] | None = None

    # While the model runs

    def add_captured(self, name: str, call: CapturedCall, ablated: str = "", output: GraphOutput | None = None) -> None:
        """Add a call, or append it to the last call of the same module if it is the next step of a generation."""
        with self._lock:
            last = self._open.get(name)
            if self._at_once or (last is None and name in self._last_calls):
                self._add_now(name, call.record, call.address, ablated, output)
                return
            if last is not None and last.ablated == ablated and last.may_continue(call):
                joined = self._append_captured(name, last, call)
                if joined:
                    return
                if joined is None:
                    self._add_now(name, call.record, call.address, ablated)
                    return
            if self.storage.limit is not None and not self.storage.reserve(call.tensors()):
                self._over_limit += 1
                return
            self._open[name] = steps = CapturedSteps(name, call, ablated)
            self._pending.append(steps)
            if call.mask is not None:
                self._masks[id(call.mask)] = call.mask.nbytes

    def _append_captured(self, name: str, last: CapturedSteps, call: CapturedCall) -> bool | None:
        """Whether the call was appended to the last of its module; None if its record has to be compared."""
        if self.storage.limit is not None:
            return None
        if last.shares_keys(call):
            return False  # nothing is saved by a decision now
        joined = last.append(call, call.queries == 1 and self._is_trusted(name, call.k))
        self._pass[name] = bool(joined)
        return joined

    def _is_trusted(self, name: str, keys: Tensor) -> bool:
        """Whether these keys need not be compared: on a GPU, where another module of the same forward pass has.

        A comparison waits for all that was launched before it. On a CPU every module compares its own.
        """
        if name in self._pass:  # the next forward pass
            self._pass = {}
        return keys.is_cuda and not self.storage.copies and next(iter(self._pass.values()), False)

    def add_deferred(
        self,
        name: str,
        make: Callable[[], Record],
        tensors: tuple[Tensor, ...],
        ablated: str,
        output: GraphOutput | None = None,
    ) -> None:
        """Add a call whose record `make` computes later; `tensors` are what it keeps alive."""
        with self._lock:
            if self.storage.copies:
                self._add_now(name, functools.partial(self._compute_now, make), 0, ablated, output)
            elif self.storage.limit is not None and not self.storage.reserve(tensors):
                self._over_limit += 1
            elif self.gradients:
                self._settle_pending()
                self._new_call(name, make, None, ablated, tensors).follow_gradient(output, self.storage.store)
            else:
                self._open.pop(name, None)
                self._pending.append(DeferredCall(name, make, ablated, tensors))

    def add_record(self, name: str, record: Record, ablated: str, output: GraphOutput | None = None) -> None:
        """Add a call at once, by its record."""
        with self._lock:
            self._add_now(name, lambda: record, record.out.data_ptr(), ablated, output)

    def add_missed(self, name: str, reason: str) -> None:
        message = f"{name}: {reason}"
        if message not in self.missed:
            self.missed.append(message)

    def add_unseen(self, name: str, reason: str) -> None:
        """A module that ran and called no attention; whether it should have is decided at the end."""
        self._unseen.setdefault(name, reason)

    def close(self, advise: Callable[[], str]) -> None:
        """At the end of the watch. `advise` says what to do if there was no call."""
        self._advise = advise
        self.depths.keep_shares({*(entry.name for entry in self._pending), *(call.name for call in self.calls)})
        if self.storage.copies or sum(self._masks.values()) >= LONG_MASKS:
            self.settle()

    # When somebody asks

    def settle(self) -> CallRecorder:
        """Make the calls of what was collected."""
        from .routing import suspend_reports

        with self._lock:
            self.storage.wait_for_copies()
            if self._pending or self._advise is not None:
                with suspend_reports(), torch.no_grad():
                    self._settle_pending()
                    if self._advise is not None:
                        advise, self._advise = self._advise, None
                        self._finish(advise)
        return self

    def _settle_pending(self) -> None:
        pending, self._pending = self._pending, []
        self._open.clear()
        for entry in pending:
            try:
                self._settle_entry(entry)
            except Exception as error:  # an error of ours must not stop the model
                self.add_missed(entry.name, f"the call could not be recorded: {error}")

    def _settle_entry(self, entry: CapturedSteps | DeferredCall) -> None:
        if isinstance(entry, DeferredCall):
            self._new_call(entry.name, entry.make, None, entry.ablated, entry.tensors)
            return
        k, v = entry.keys_and_values()
        (_, first), *later = entry.records(k, v)
        if self._joins(entry.name, first, entry.calls[0].address, entry.ablated):
            for _, record in later:
                self._append_step(entry.name, self._last_calls[entry.name], record)
            return
        call = self._new_call(entry.name, self._kept(first), first, entry.ablated)
        if later:
            call.extend(later, k, v)

    def _finish(self, advise: Callable[[], str]) -> None:
        self._last_calls.clear()
        self._last_written = None
        self._masks.clear()
        masks: dict[int, tuple[Tensor, Mask | None]] = {}
        for call in self.calls:
            call.shorten_masks(masks)
        if self._over_limit:
            assert self.storage.limit is not None
            limit = format_bytes(self.storage.limit)
            self.missed.append(f"{self._over_limit} calls were not kept: the limit is {limit}")
        self._name_unseen()
        self.advice = "" if self.calls else advise()

    def _name_unseen(self) -> None:
        """Name attention modules that ran unseen, without parts of modules whose own call was seen."""
        names = {*(call.name for call in self.calls), *(message.partition(": ")[0] for message in self.missed)}
        for name, reason in self._unseen.items():
            parents = name.split(".")
            if not any(".".join(parents[:count]) in names for count in range(1, len(parents) + 1)):
                self.add_missed(name, reason)

    # One call at a time

    def _add_now(
        self, name: str, make: Callable[[], Record], address: int, ablated: str, output: GraphOutput | None = None
    ) -> None:
        """Add a call after all that were collected before."""
        self._settle_pending()
        try:
            record = make() if self.storage.values else self._without_values(make())
            if record.matrix and not self._has_room(name, record):
                return
            if not self._joins(name, record, address, ablated):
                if self.storage.limit is not None and not self.storage.reserve(tensors_of(record)):
                    self._over_limit += 1
                    return
                last = self._last_calls.get(name)
                call = self._new_call(name, self._kept(record), record, ablated)
                if record.origin == IN_ITS_OWN_CODE:
                    self._last_written = name, address, call, last
            if self.gradients:
                self._last_calls[name].follow_gradient(output, self.storage.store)
        except Exception as error:  # an error of ours must not stop the model
            self.add_missed(name, f"the call could not be recorded: {error}")

    def _has_room(self, name: str, record: Record) -> bool:
        """Whether a whole matrix of weights can be held; if not, the call is named as missed."""
        if self.storage.limit is not None or self.storage.copies:
            return True
        energies = record.energies
        size = math.prod((*energies.batch, energies.queries, energies.keys)) * energies.a.itemsize
        if self._matrices + size > MATRICES:
            self.add_missed(
                name,
                f"its weights, {format_bytes(size)}, are not held: {record.matrix}, so that they can be held only as "
                f"whole matrices, and those of this watch would take more than {format_bytes(MATRICES)}. Watch fewer "
                'layers (layers=…), keep="cpu" or a folder, or say what may be held (limit="64GB")',
            )
            return False
        self._matrices += size
        return True

    def _joins(self, name: str, record: Record, address: int, ablated: str) -> bool:
        """Whether the record was appended to the last call of its module, as the next step of a generation."""
        last = self._without_written(name, record, address, self._last_calls.get(name))
        return last is not None and last.ablated == ablated and self._append_step(name, last, record)

    def _new_call(
        self,
        name: str,
        record: Record | Callable[[], Record],
        original: Record | None,
        ablated: str,
        tensors: tuple[Tensor, ...] = (),
    ) -> Call:
        layer, share = functools.partial(self.depths.of, name), functools.partial(self.depths.share, name)
        call = Call(name, record, original, layer, ablated, share, tensors)
        self._last_calls[name] = call
        self.calls.append(call)
        return call

    def _kept(self, record: Record) -> Record:
        """The record with its tensors where they are kept, without a graph for gradients."""
        if self.storage.copies:
            return placed(replace(record, key_versions=None), functools.partial(self.storage.store, wait=False))
        if any(x.requires_grad for x in record.energies.learned()):
            return placed(record, Tensor.detach)
        return with_some_rows(record)

    def _without_written(self, name: str, record: Record, address: int, last: Call | None) -> Call | None:
        """The last call of the module. If it noted an output that it computed by a softmax, the note replaces that."""
        written = self._last_written
        if written is None or record.origin == IN_ITS_OWN_CODE or written[:2] != (name, address):
            return last
        self.calls.remove(written[2])
        self._last_written = None
        if written[3] is None:
            self._last_calls.pop(name)
        else:
            self._last_calls[name] = written[3]
        return written[3]

    def _compute_now(self, make: Callable[[], Record]) -> Record:
        """A deferred record, computed and measured at once: the copies hold only its results, not its inputs."""
        record = placed(make(), Tensor.detach)
        fidelity = Call("", record).fidelity()
        return replace(record, measured=fidelity.error, budget=fidelity.budget, after=None)

    def _without_values(self, record: Record) -> Record:
        """The record proved at once, without its values and outputs."""
        record = self._compute_now(lambda: record)
        v, out = (x.new_empty(*x.shape[:-1], 0) for x in (record.v, record.out))
        return replace(record, v=v, out=out)

    def _append_step(self, name: str, last: Call, record: Record) -> bool:
        """Append the record to the last call if it is the next step of a generation and fits into the limit."""
        if self.storage.limit is not None:
            queries, keys = record.energies.queries, record.energies.keys
            size = record.energies.a.nbytes + record.out.nbytes
            size += (record.energies.b.nbytes + record.v.nbytes) * min(queries, keys) // keys
            if self.storage.bytes + size > self.storage.limit:
                return False  # a call of its own will not fit either, and is counted
            self.storage.bytes += size
        self.storage.wait_for_copies()  # its keys are compared with those kept
        joined = last.append_step(record, self.storage.store, self._is_trusted(name, record.energies.b))
        self._pass[name] = joined
        if not joined and self.storage.limit is not None:
            self.storage.bytes -= size
        return joined
