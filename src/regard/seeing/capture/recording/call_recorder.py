"""CallRecorder: the calls of a watch, collected while the model runs, and made when somebody asks."""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .. import call_routing
from ..attention_call import Call
from ..call_inputs_and_output import placed, tensors_of, with_some_rows
from ..computed_weights import IN_ITS_OWN_CODE
from ..module_depth import ModuleDepths, is_distributed
from ..tensor_storage import TensorStorage, format_bytes
from . import key_growth
from .call_log import CAPTURED, MODULE, PREVIOUS, CallLog, Q
from .captured_call import CapturedCall, CapturedSteps
from .module_outputs import ModuleOutputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....attention import Mask
    from ..call_inputs_and_output import Record
    from ..output_gradients import GraphOutput
    from .call_log import LoggedCall
    from .key_growth import KeyGrowth

MATRICES = 8 << 30
"""Bytes of whole weight matrices that a watch without a limit of its own holds: of models that compute their weights in
their own code, whose queries and keys are not known."""
LONG_MASKS = 1 << 26
"""Masks of more bytes than this, all together, are shortened when the watch closes; others when somebody asks."""


class DeferredCall(NamedTuple):
    """A call whose record is computed when it is needed, from inputs that `make` holds."""

    name: str
    make: Callable[[], Record]
    ablated: str
    tensors: tuple[Tensor, ...]
    """What `make` keeps alive."""


class CallRecorder:
    """Collects the calls of one watch.

    Only what later calls depend on is decided while the model runs: whether keys and values are those of a cache that
    grew, so that the old ones need not be kept. The rest is done by `settle`.
    """

    def __init__(
        self,
        storage: TensorStorage | None = None,
        depths: ModuleDepths | None = None,
        gradients: bool = False,
        fixed_outputs: dict[str, bool] | None = None,
        names: dict[int, str] | None = None,
        known: dict[int, LoggedCall | None] | None = None,
    ) -> None:
        """With `gradients`, the gradient of each output is kept; its hook needs the call at once.

        `fixed_outputs` says of modules that ran before whether they left their output unchanged; `names` has the names
        of modules by id, and `known` the ids of those whose calls can be logged. None: none can.
        """
        self.gradients = gradients
        self.storage = TensorStorage(None, None) if storage is None else storage
        self._at_once = self.storage.copies or gradients or not self.storage.values
        self._names = {} if names is None else names
        can_log = known is not None and not self._at_once and self.storage.limit is None
        self.log = CallLog(known) if can_log and known is not None else None
        """Where calls of known modules go while the model runs, before all that is pending."""
        fixed = {} if fixed_outputs is None else fixed_outputs
        self._open: dict[str, CapturedSteps] = {}  # the pending steps of each module that may continue
        self.outputs = ModuleOutputs(fixed, self._names, known, self.log, self._open)
        self.depths = ModuleDepths([]) if depths is None else depths
        self.calls: list[Call] = []
        self.missed: list[str] = []
        self.advice = ""
        self._lock = threading.RLock()
        self._pending: list[CapturedSteps | DeferredCall] = []
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
            growth = key_growth.take()
            if self.log is not None and self.log.entries:
                self.outputs.check()  # others have run since
            self._read_log()
            self.outputs.keep(name, call)
            self._add_call(name, call, ablated, output, growth=growth)

    def _add_call(
        self,
        name: str,
        call: CapturedCall,
        ablated: str = "",
        output: GraphOutput | None = None,
        grown_from: CapturedCall | None = None,
        growth: KeyGrowth | None = None,
    ) -> None:
        """Add a call whose output is kept; its keys begin with those of `grown_from`, or were made by a cache."""
        last = self._open.get(name)
        if self._at_once or (last is None and name in self._last_calls):
            self._add_now(name, call.record, call.address, ablated, output)
            return
        if last is not None and last.ablated == ablated and last.may_continue(call):
            grown = grown_from is not None and last.calls[-1] is grown_from
            joined = self._append_captured(name, last, call, grown or last.has_grown(call, growth))
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

    def _read_log(self) -> None:
        """Add the calls that were logged, in their order."""
        if self.log is None or not self.log.entries:
            return
        for entry, fixed in self.log.take():
            name, previous = self._names[entry[MODULE]], entry[PREVIOUS]
            try:
                entry[CAPTURED] = call = CapturedCall.of_logged(fixed)
                entry[PREVIOUS] = None
                self._add_call(name, call, grown_from=None if previous is None else previous[CAPTURED])
            except Exception as error:  # an error of ours must not stop the model
                self.add_missed(name, call_routing.failure(error, entry[Q]))

    def _append_captured(self, name: str, last: CapturedSteps, call: CapturedCall, grown: bool) -> bool | None:
        """Whether the call was appended to the last of its module; None if its record has to be compared."""
        if self.storage.limit is not None:
            return None
        if not grown and last.shares_keys(call):
            return False  # nothing is saved by a decision now
        joined = last.append(call, call.queries == 1 and self._is_trusted(name, call.k), grown)
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
            self._read_log()
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
            self._read_log()
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
        self.outputs.check()
        if self.log is not None:
            self.log.close()
            if self.log.mask_bytes >= LONG_MASKS or is_distributed():
                self._read_log()
        self.depths.keep_shares({*(entry.name for entry in self._pending), *(call.name for call in self.calls)})
        if self.storage.copies or sum(self._masks.values()) >= LONG_MASKS:
            self.settle()

    # When somebody asks

    def settle(self) -> CallRecorder:
        """Make the calls of what was collected."""
        with self._lock:
            self.storage.wait_for_copies()
            if self.log is not None and self.log.entries:
                with call_routing.suspend_reports(), torch.no_grad():
                    self._read_log()
            if self._pending or self._advise is not None:
                with call_routing.suspend_reports(), torch.no_grad():
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
        if first.out_changed or any(record.out_changed for _, record in later):
            self.outputs.add_changed(entry.name)
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
        fidelity = Call("", placed(record, Tensor.detach)).fidelity()
        v, out = (x.new_empty(*x.shape[:-1], 0) for x in (record.v, record.out))
        return replace(record, v=v, out=out, measured=fidelity.error, budget=fidelity.budget, after=None)

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
