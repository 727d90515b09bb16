"""watch(): records every attention call that a model makes, while the model runs unchanged."""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from . import call_routing
from .attention_call import Call
from .call_inputs_and_output import placed, tensors_of, with_some_rows
from .computed_weights import IN_ITS_OWN_CODE
from .module_depth import ModuleDepths, named_parts
from .recorded_calls import Seen
from .taps import TAPS, patching
from .tensor_storage import TensorStorage, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from ...attention import Mask
    from .call_inputs_and_output import Record
    from .module_depth import Parts
    from .output_gradients import GraphOutput

_lock = threading.RLock()


def watch(
    model: nn.Module,
    *,
    layers: int | str | Sequence[int | str] | None = None,
    keep: str | Path | None = None,
    limit: str | int | None = None,
    gradients: bool = False,
) -> Watch:
    """Record every attention call that `model` makes inside the block; the model itself does not change.

        with regard.watch(model) as seen:
            model(**inputs)                        # or model.generate(…), or a training step
        seen["encoder.layer.3"].head(5).top(8)

    Queries, keys, values and one number per row are kept by reference, so that watching takes almost no time; weights
    are computed when they are asked for.

    - `layers`: record these only, by depth, name or pattern (`3`, `"decoder"`, `"*.cross_attn"`).
    - `keep`: "cpu" keeps copies on the CPU, a folder keeps them in files; by default tensors are kept by reference.
    - `limit`: the memory to keep at most ("8GB"); calls beyond are counted in `seen.missed`, not kept.
    - `gradients`: keep the gradient of each output, `call.gradient`, when a backward pass computes it, inside the block
      or after it. `call.contributions()` is then attention × gradient.

    Calls inside a model compiled with `torch.compile` cannot be recorded: watch the original model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch takes a model (an nn.Module), got {type(model).__name__}")
    parts = named_parts(model)
    compiled = [name or "the model" for name, part in parts if _compiled(part)]
    if compiled:
        raise ValueError(
            f"{compiled[0]} is compiled, and calls inside compiled code cannot be seen. Watch and call the original "
            "model (model._orig_mod, or without model.forward = torch.compile(…)), or watch before compiling"
        )
    return Watch(parts, layers, keep, limit, gradients)


class Watch:
    """The context manager that `watch` returns; entering it returns a `Seen`."""

    def __init__(
        self,
        parts: Parts,
        layers: int | str | Sequence[int | str] | None,
        keep: str | Path | None,
        limit: str | int | None,
        gradients: bool = False,
    ) -> None:
        """`parts` are the modules of the model, the model itself first."""
        self.parts, self.model, self.storage = parts, parts[0][1], TensorStorage(keep, limit)
        self.gradients = gradients
        self.layers = [layers] if isinstance(layers, int | str) else layers
        # By id, since a module may not be hashable. The reference to the model keeps the ids valid.
        self.names = {id(part): name for name, part in parts}
        self.names[id(self.model)] = type(self.model).__name__
        self._depths = ModuleDepths(parts)
        self.thread = 0
        self.seen = Seen(type(self.model).__name__, self.storage)
        self._last_calls: dict[str, Call] = {}
        self._last_written: tuple[str, int, Call, Call | None] | None = None
        self._pass: dict[str, bool] = {}  # the modules of this forward pass, and whether each continued its call
        self._over_limit = 0
        self._unseen: dict[str, str] = {}

    def __enter__(self) -> Seen:
        self.thread = threading.get_ident()
        patching.install(self.parts)
        for tap in TAPS:
            tap.on_watch()
        with _lock:
            call_routing.watches = (*call_routing.watches, self)
        return self.seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tap in TAPS:
            tap.on_close()
        with _lock:
            call_routing.watches = tuple(watch for watch in call_routing.watches if watch is not self)
        patching.remove()
        self._last_calls.clear()
        masks: dict[int, tuple[Tensor, Mask | None]] = {}
        with torch.no_grad():
            for call in self.seen.calls:
                call.shorten_masks(masks)
        if self._over_limit:
            assert self.storage.limit is not None
            limit = format_bytes(self.storage.limit)
            self.seen.missed.append(f"{self._over_limit} calls were not kept: the limit is {limit}")
        self._name_unseen()
        if not self.seen.calls:
            functions = [tap.sees for tap in TAPS if tap.sees]
            self.seen.advice = (
                f"{type(self.model).__name__} called no attention inside the block that could be seen: "
                f"{', '.join(functions[:-1])} or {functions[-1]}. A function of your own is seen with one line, "
                "regard.note(q, k, v, out)"
            )
            if "torch._dynamo" in sys.modules:  # imported by torch.compile
                self.seen.advice += (
                    ". Calls inside a function made by torch.compile, such as torch.compile(model.forward), cannot be "
                    "seen: call the model itself inside the block, or torch.compiler.set_stance('force_eager') first"
                )

    # Called by dispatch

    def add(
        self,
        name: str,
        record: Record | Callable[[], Record],
        tensors: tuple[Tensor, ...],
        ablated: str = "",
        output: GraphOutput | None = None,
    ) -> None:
        """Add a call, or append it to the last call of the same module as the next step of a generation."""
        if not self._selects(name):
            return
        with _lock:
            try:
                call = self._add(name, record, tensors, ablated)
                if self.gradients and call is not None:
                    call.follow_gradient(output, self.storage.store)
            except Exception as error:  # an error of ours must not stop the model
                self.add_missed(name, f"{type(error).__name__}: {error}")

    def _add(
        self, name: str, record: Record | Callable[[], Record], tensors: tuple[Tensor, ...], ablated: str
    ) -> Call | None:
        """The call that the record is kept in; None if it is over the limit."""
        last = self._last_calls.get(name)
        if callable(record):
            record = self._compute_now(record) if self.storage.copies else record
        if not callable(record):
            last = self._without_written(name, record, last)
            if last is not None and last.ablated == ablated and self._append_step(name, last, record):
                return last
            if self.storage.limit is not None:
                tensors = (*tensors_of(record), *tensors)
        if self.storage.limit is not None and not self.storage.reserve(tensors):
            self._over_limit += 1
            return None
        kept = record if callable(record) else self._kept(record)
        original = None if callable(record) else record
        call = Call(name, kept, original, functools.partial(self._depths.of, name), ablated)
        if not callable(record) and record.origin == IN_ITS_OWN_CODE:
            self._last_written = name, record.out.data_ptr(), call, last
        self._last_calls[name] = call
        self.seen.calls.append(call)
        return call

    def _kept(self, record: Record) -> Record:
        """The record with its tensors where they are kept, without a graph for gradients."""
        if self.storage.copies or any(x.requires_grad for x in record.energies.learned()):
            return placed(record, self.storage.store)
        return with_some_rows(record)

    def _without_written(self, name: str, record: Record, last: Call | None) -> Call | None:
        """The last call of the module. If it noted an output that it computed by a softmax, the note replaces that."""
        written = self._last_written
        if written is None or record.origin == IN_ITS_OWN_CODE or written[:2] != (name, record.out.data_ptr()):
            return last
        self.seen.calls.remove(written[2])
        self._last_written = None
        return written[3]

    def _compute_now(self, make: Callable[[], Record]) -> Record:
        """A deferred record, computed and measured at once: the copies hold only its results, not its inputs."""
        record = placed(make(), Tensor.detach)
        fidelity = Call("", record).fidelity()
        return replace(record, measured=fidelity.error, budget=fidelity.budget, after=None)

    def _append_step(self, name: str, last: Call, record: Record) -> bool:
        """Append the record to the last call if it is the next step of a generation and fits into the limit."""
        if self.storage.limit is not None:
            queries, keys = record.energies.queries, record.energies.keys
            size = record.energies.a.nbytes + record.out.nbytes
            size += (record.energies.b.nbytes + record.v.nbytes) * min(queries, keys) // keys
            if self.storage.bytes + size > self.storage.limit:
                return False  # a call of its own will not fit either, and is counted
            self.storage.bytes += size
        if name in self._pass:  # the next forward pass
            self._pass = {}
        # One module of a pass compares its keys, the others follow; on a CPU each compares its own.
        trusted = next(iter(self._pass.values()), False) and record.energies.b.is_cuda and not self.storage.copies
        joined = last.append_step(record, self.storage.store, trusted)
        self._pass[name] = joined
        if not joined and self.storage.limit is not None:
            self.storage.bytes -= size
        return joined

    def add_missed(self, name: str, reason: str) -> None:
        message = f"{name}: {reason}"
        if message not in self.seen.missed:
            self.seen.missed.append(message)

    def add_unseen(self, name: str, reason: str) -> None:
        """A module that ran and called no attention; whether it should have is decided at the end."""
        if self._selects(name):
            self._unseen.setdefault(name, reason)

    def _name_unseen(self) -> None:
        """Name attention modules that ran unseen, without parts of modules whose own call was seen."""
        names = {*self.seen.names, *(message.partition(": ")[0] for message in self.seen.missed)}
        for name, reason in self._unseen.items():
            parents = name.split(".")
            if not any(".".join(parents[:count]) in names for count in range(1, len(parents) + 1)):
                self.add_missed(name, reason)

    def _selects(self, name: str) -> bool:
        if self.layers is None:
            return True
        return any(self._depths.selects(name, x) for x in self.layers)


def _compiled(part: nn.Module) -> bool:
    """Whether it is torch.compile(module), or was compiled by module.compile() or torch.compile(module.forward)."""
    if type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None:
        return True
    own = vars(part).get("forward")
    return own is not None and hasattr(own, "_torchdynamo_orig_callable")
