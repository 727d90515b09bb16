"""Seen: the attention calls recorded by a `watch` block, in order.

While the model runs a call is appended. Only what later calls depend on is decided at once: whether keys are those of a
cache that grew, so that the old ones need not be kept. The rest is the work of `_settle`, when somebody asks.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import weakref
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch

from . import generation_passes
from .generation_passes import IN_ITS_OWN_CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.table import Table
    from torch import Tensor, nn

    from ..attention.masks import Mask
    from ..attention.weights import Weights
    from ..viewer.export import Widget
    from .activations import Activations, LayerValues
    from .call import Call
    from .coverage import Coverage
    from .storage import TensorStorage
    from .terminal import ResultTable
    from .text_models import TokenizedText
    from .watch import Parts

HEADER = ("layer", "kind", "heads", "queries", "keys", "computed by", "fidelity, rows")
MATRICES = 8 << 30
"""Bytes of whole weight matrices that a watch without a limit of its own holds: of models that compute their weights in
their own code, whose queries and keys are not known."""
LONG_MASKS = 1 << 26
"""A mask of more bytes than this is shortened when the watch closes; others when somebody asks."""


class Seen:
    """A list of `Call`s, indexed by number or name: `seen["encoder.layer.3"]`. It prints as a table."""

    def __init__(
        self,
        model: str = "",
        storage: TensorStorage | None = None,
        depths: ModuleDepths | None = None,
        gradients: bool = False,
    ) -> None:
        """`gradients`: keep the gradient of each output."""
        self.model = model
        self.tokens: list[list[str]] | None = None
        """Labels of rows and columns, one list for each entry of the batch, if set."""
        self.sides: dict[str, list[str]] = {}
        """Labels for encoder-decoder models: the tokens of the encoder ("source"), the token each decoder row
        generates ("target"), and the tokens the decoder reads ("read")."""
        self.text: TokenizedText | None = None
        """The text that the model read, if it was one text and is known."""
        self.coverage: Coverage | None = None
        """What `regard.prove` found; None if it was not tested."""
        self.gradients = gradients
        self.activations: Activations | None = None
        """What layers returned, if `watch(model, activations=True)` kept it; see `stream` and `mlp`."""
        self._storage = storage  # None: everything is kept by reference, without a limit
        self._depths = depths
        self._lock = threading.RLock()
        self._calls: list[Call] = []
        self._settled = 0  # so many calls are complete
        self._last: dict[str, Call] = {}  # the newest call of each module, which the next may continue
        self._pass: dict[str, bool] = {}  # the modules of this forward pass, and whether each continued its call
        self._missed: list[str] = []
        self._matrices = 0  # bytes
        self._over_limit = 0
        self._advice = ""
        self._advise: Callable[[], str] | None = None

    # While the model runs

    def add(self, call: Call, output: Tensor | None = None, arrange: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add a call, or append it to the last call of its module if it is the next step of a generation.

        `output` and `arrange` are for its gradient, see `Call.follow_gradient`.
        """
        storage = self._storage
        with self._lock:
            call.depths = self._depths
            if self.gradients:
                call.follow_gradient(output, arrange, torch.Tensor.detach if storage is None else storage.store)
            if call.origin != IN_ITS_OWN_CODE:
                self._replace_written(call)
            now = storage is not None and (storage.copies or not storage.values)
            with torch.no_grad() if now else nullcontext():
                if storage is not None and now:  # keep a copy, or prove it and keep no values
                    call.complete()
                    if call.after is not None or not storage.values:
                        call.prove_now(storage.values)
                last = self._last.get(call.name)
                if last is not None and (now or self._may_grow(last, call)) and self._joins(last, call):
                    return
                if not self._has_room(call):
                    return
                if storage is not None and storage.copies:
                    call.place(functools.partial(storage.store, wait=False))
                self._calls.append(call)
                self._last[call.name] = call
                self._settled = len(self._calls) if now else self._settled

    @staticmethod
    def _may_grow(last: Call, call: Call) -> bool:
        """Whether keys may be those of `last` in a longer tensor: joined at once, the old ones need not be kept."""
        return call.q is not None and call.keys > call.q.shape[-2] and not generation_passes.shares_keys(last, call)

    def _joins(self, last: Call, call: Call) -> bool:
        """Whether the call was appended to the last call of its module and fits into the limit."""
        if last.ablated != call.ablated:
            return False
        storage, size, store = self._storage, 0, None
        if storage is not None:
            if storage.limit is not None and call.keys:
                size = sum(x.nbytes for x in (call.q, call.out) if x is not None)
                size += sum(x.nbytes for x in (call.k, call.v)) * min(call.queries, call.keys) // call.keys
                if storage.bytes + size > storage.limit:
                    return False  # a call of its own will not fit either, and is counted
            storage.wait_for_copies()  # its keys are compared with those kept
            store = storage.store if storage.copies else None
        if call.name in self._pass:  # the next forward pass
            self._pass = {}
        # On a GPU a comparison waits for all that was launched before it: one module of each forward pass compares.
        trusted = call.q is not None and call.q.is_cuda and store is None and next(iter(self._pass.values()), False)
        joined = generation_passes.append(last, call, store, trusted)
        self._pass[call.name] = joined
        if storage is not None and joined:
            storage.bytes += size
        return joined

    def _has_room(self, call: Call) -> bool:
        """Whether the call can be held; if not, it is counted, or named if its weights are a whole matrix."""
        storage = self._storage
        if storage is not None and (storage.limit is not None or storage.copies):
            fits = storage.limit is None or storage.reserve(x for x in call.tensors() if x is not call.out)
            self._over_limit += not fits
            return fits
        self._matrices += _weight_bytes(call) if call.matrix else 0
        if not call.matrix or self._matrices <= MATRICES:
            return True
        self._matrices -= _weight_bytes(call)
        self.add_missed(
            call.name,
            f"its weights, {_size(_weight_bytes(call))}, are not held: {call.matrix}, so that they can be held only as "
            f"whole matrices, and those of this watch would take more than {_size(MATRICES)}. Watch fewer layers "
            '(layers=…), keep="cpu" or a folder, or say what may be held (limit="64GB")',
        )
        return False

    def _replace_written(self, call: Call) -> None:
        """If the module notes an output that it computed by a softmax just before, the note replaces that call."""
        written = self._calls[-1] if self._calls else None
        if written is None or written.origin != IN_ITS_OWN_CODE:
            return
        if (written.name, written.address) == (call.name, call.address):
            self._calls.pop()
            self._settled = min(self._settled, len(self._calls))
            before = next((x for x in reversed(self._calls) if x.name == call.name), None)
            self._last.pop(call.name)
            if before is not None:
                self._last[call.name] = before

    def add_missed(self, name: str, reason: str) -> None:
        message = f"{name}: {reason}"
        if message not in self._missed:
            self._missed.append(message)

    def close(self, advise: Callable[[], str]) -> None:
        """At the end of the watch. `advise` says what to do if there was no call."""
        self._advise = advise
        if self._depths is not None:
            self._depths.keep_shares({call.name for call in self._calls})
        masks = [call.mask.nbytes for call in self._calls if call.mask is not None]
        if (self._storage is not None and self._storage.copies) or max(masks, default=0) >= LONG_MASKS:
            self._settle()

    # When somebody asks

    def _settle(self) -> None:
        """Complete what was collected: energies, steps of a generation, short masks."""
        from .watch import suspend_reports

        with self._lock:
            if self._storage is not None:
                self._storage.wait_for_copies()
            if self._settled == len(self._calls) and self._advise is None:
                return
            with suspend_reports(), torch.no_grad():
                pending = self._calls[self._settled :]
                del self._calls[self._settled :]
                last = {call.name: call for call in self._calls}
                for call in pending:
                    before = last.get(call.name)
                    try:
                        if call.q is not None:  # otherwise queries and keys are computed when this call is asked for
                            call.complete()
                            if before is not None and not call.later and self._joins(before, call):
                                continue
                    except Exception as error:  # an error of ours must not stop the model
                        self.add_missed(call.name, f"the call could not be recorded: {error}")
                        continue
                    self._calls.append(call)
                    last[call.name] = call
                self._last, self._settled = last, len(self._calls)
                if self._advise is not None:
                    advise, self._advise = self._advise, None
                    self._finish(advise)

    def _finish(self, advise: Callable[[], str]) -> None:
        self._last.clear()
        masks: dict[int, tuple[Tensor, Mask | None]] = {}
        for call in self._calls:
            call.shorten_masks(masks)
        if self._over_limit and self._storage is not None:
            limit = _size(self._storage.limit or 0)
            self._missed.append(f"{self._over_limit} calls were not kept: the limit is {limit}")
        self._advice = "" if self._calls else advise()

    @property
    def calls(self) -> list[Call]:
        """All calls, in order."""
        self._settle()
        return self._calls

    @property
    def missed(self) -> list[str]:
        """Calls that could not be recorded or kept, and modules that ran unseen, each with its reason."""
        self._settle()
        return self._missed

    @property
    def advice(self) -> str:
        """What to do if no call was recorded."""
        self._settle()
        return self._advice

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls)

    @overload
    def __getitem__(self, name: int | str | tuple[str, int]) -> Call: ...
    @overload
    def __getitem__(self, name: slice) -> list[Call]: ...
    @overload
    def __getitem__(self, name: tuple[int, int]) -> Weights: ...
    def __getitem__(self, name: Any) -> Any:
        """By number, by name (whole components of the dotted path), or by name and index among calls of that name.

        `seen[2:5]` are several calls, and `seen[3, 5]` are the weights of one head.
        """
        if isinstance(name, slice):
            return self.calls[name]
        if isinstance(name, tuple) and len(name) == 2 and all(isinstance(x, int) for x in name):
            call, head = self[name[0]], name[1]
            if not -call.heads <= head < call.heads:
                raise IndexError(f"{call.name} has {call.heads} heads, counted from 0; there is no {head}")
            return call.head(head % call.heads)
        if isinstance(name, int):
            if -len(self) <= name < len(self):
                return self.calls[name]
            known = f"there are {len(self)} calls, counted from 0" if len(self) else self._empty_message()
            raise IndexError(f"there is no call {name}; {known}")
        key, index = name if isinstance(name, tuple) else (name, None)
        matches = [call for call in self.calls if f".{key}." in f".{call.name}."]
        matches = [call for call in matches if call.name == key] or matches
        if index is not None and -len(matches) <= index < len(matches):
            return matches[index]
        if index is None and len(matches) == 1:
            return matches[0]
        if not matches:
            known = f"there are {_first_names(self.calls)}" if self.calls else self._empty_message()
            raise KeyError(f"no attention was called in {key!r}; {known}")
        raise KeyError(f"{key!r} is {len(matches)} calls: {_first_names(matches)}; take seen[{key!r}, 0] and so on")

    @property
    def names(self) -> list[str]:
        """The modules that called attention, each once, in order."""
        return list(dict.fromkeys(call.name for call in self.calls))

    @property
    def stream(self) -> LayerValues:
        """What each layer read, and what left the last; see `activations.py`."""
        return self._layer_values("stream")

    @property
    def mlp(self) -> LayerValues:
        """What the MLP of each layer gave."""
        return self._layer_values("mlp")

    @property
    def heads(self) -> LayerValues:
        """Σ_j w_ij v_j of all heads of each call, [*batch, heads, T_q, d_v], computed when it is asked for."""
        return self._layer_values("heads")

    def _layer_values(self, kind: str) -> LayerValues:
        from .activations import LayerValues

        return LayerValues(self, self.activations, kind)

    @property
    def nbytes(self) -> int:
        """The memory that is held: of queries, keys, values, masks, and some rows of each output.

        Memory that several calls share, or that the model itself still holds, is counted once.
        """
        storages = [x.untyped_storage() for call in self.calls for x in call.tensors() if not x.is_nested]
        return sum({x.data_ptr(): x.nbytes() for x in storages}.values())

    @property
    def matrices(self) -> list[str]:
        """The calls whose weights are held as a whole, T_q × T_k numbers for each head, with their size and reason.

        All others hold queries and keys, and grow with the length.
        """
        return [f"{call.name}: {_size(_weight_bytes(call))}, {call.matrix}" for call in self.calls if call.matrix]

    @property
    def prompt(self) -> int:
        """The number of queries of the first forward pass: the tokens of the prompt, before generated ones."""
        return self.calls[0].steps[0] if self.calls else 0

    @property
    def faithful(self) -> bool | None:
        """Whether every call that was seen is proved: its weights times its values are what the module computed.

        It says nothing of what was not seen: that is `complete`. None if some could not be measured (see `unproven`)
        and no other differs.
        """
        verdicts = [call.fidelity().faithful for call in self.calls]
        if False in verdicts:
            return False
        return None if not verdicts or None in verdicts else True

    @property
    def complete(self) -> bool | None:
        """Whether attention that was seen is the only way between tokens, by `regard.prove`; None if it was not tested
        or could not be told."""
        return None if self.coverage is None else self.coverage.complete

    @property
    def unproven(self) -> list[Call]:
        """The calls whose fidelity cannot be measured here: their output was not seen, or was not W·v (dropout), or it
        was measured before they were written to a trace."""
        return [call for call in self.calls if call.fidelity().faithful is None]

    def save(self, path: str | Path) -> None:
        """Write a trace to a folder, as safetensors and JSON; `regard.load_trace` reads it.

        A call that can no longer be computed is listed in `missed` instead.
        """
        from .storage import save_trace

        save_trace(self, path)

    def show(self) -> Widget:
        """Show the viewer in a notebook: Jupyter, VS Code, Colab, marimo."""
        from ..viewer.export import widget

        return widget(self)

    def to_html(self, path: str | Path, size: int = 256) -> None:
        """Write the viewer and its data to one HTML file, which needs no network.

        Matrices of more than `size` tokens are pooled to `size` × `size` cells.
        """
        from ..viewer.export import write

        write(self, path, size)

    def table(self) -> ResultTable:
        """One row per call: shapes, what computed it, and the fidelity error (None if it cannot be measured)."""
        from .terminal import ResultTable

        rows = []
        for call in self.calls:
            measured, (*_, queries, keys) = call.fidelity(), call.shape
            row = call.name, call.layer, call.kind, call.heads, queries, keys, call.origin, measured.error
            rows.append((*row, measured.faithful))
        names = ("name", "layer", "kind", "heads", "queries", "keys", "computed by", "fidelity", "faithful")
        return ResultTable({name: [row[at] for row in rows] for at, name in enumerate(names)})

    def to_frame(self) -> Any:
        """The table as a data frame of pandas or polars."""
        return self.table().to_frame()

    def rows(self) -> list[tuple[str, ...]]:
        """The table's cells: one row per call."""
        return [_cells(call) for call in self.calls]

    def __repr__(self) -> str:
        if not self.calls:
            return "\n".join([f"Seen: nothing. {self._empty_message()}", *self.missed])
        rows = [HEADER, *self.rows()]
        widths = [max(len(row[at]) for row in rows) for at in range(len(HEADER))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"! {message}" for message in self.missed)])

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text  # so that names are not read as markup

        table = Table(*HEADER, caption=Text("\n".join(self.missed), style="red") if self.missed else None, box=None)
        for call, row in zip(self.calls, self.rows(), strict=True):
            table.add_row(*map(Text, row), style="red" if call.fidelity().faithful is False else None)
        return table

    def _empty_message(self) -> str:
        return self.advice or "no attention was called inside the block"


def _cells(call: Call) -> tuple[str, ...]:
    fidelity = call.fidelity()
    try:
        *_, queries, keys = call.shape
    except Exception:  # a deferred call whose inputs are gone; fidelity says why
        return call.name, "?", "?", "?", "?", "?", f"NOT known: {fidelity.remark}"
    if fidelity.lost:
        verdict = f"NOT known: {fidelity.remark}"
    elif fidelity.error is None:
        verdict = f"? ({fidelity.remark})"
    elif fidelity.faithful is not False:
        verdict = f"{fidelity.error:.1e}, {fidelity.rows} of {queries}"
    else:
        verdict = f"{fidelity.error:.1e} NOT what was computed"
    if fidelity.error is not None and fidelity.remark:
        verdict += f"; {fidelity.remark}" if fidelity.untold else f" ({fidelity.remark})"
    steps = call.steps
    rows = str(queries) if len(steps) == 1 else f"{steps[0]} + {queries - steps[0]}"
    origin = f"{call.origin}, without {call.ablated}" if call.ablated else call.origin
    heads, whole = str(call.heads), call.all_heads
    if whole != call.heads:
        heads += f" of {whole}, from {call.head_numbers.start}"
    return call.name, call.kind, heads, rows, str(keys), origin, verdict


def _size(count: int) -> str:
    from .storage import format_bytes

    return format_bytes(count)


def _weight_bytes(call: Call) -> int:
    return math.prod(call.shape) * call.own.a.element_size()


def _first_names(calls: Sequence[Call]) -> str:
    names = list(dict.fromkeys(call.name for call in calls))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


class HeadShare(NamedTuple):
    """The heads of one process among those of `ranks`."""

    rank: int
    ranks: int


WHOLE = HeadShare(0, 1)


def _head_share(module: nn.Module | None) -> HeadShare:
    """By the parameters: heads are divided where some are split by rows and others by columns over the same processes.

    That is how projections to queries, keys and values and the projection of the output are split (Shoeybi et al.
    2019). FSDP splits all parameters by rows and gathers them before the module runs: it divides no heads.
    """
    tensor = sys.modules.get("torch.distributed.tensor")  # imported if a parameter is a DTensor
    if module is None or tensor is None:
        return WHOLE
    split = [x for x in module.parameters() if isinstance(x, tensor.DTensor)]
    for mesh in {x.device_mesh for x in split}:
        for axis in range(mesh.ndim):
            placements = [x.placements[axis] for x in split if x.device_mesh == mesh]
            if {0, 1} <= {x.dim for x in placements if isinstance(x, tensor.Shard)}:
                return HeadShare(mesh.get_local_rank(axis), mesh.size(axis))
    return WHOLE


class ModuleDepths:
    """Layers are counted among modules at the same place of a repeated structure: "encoder.layer.*.attention.self".

    So the third block of a second stage follows those of the first, numbers of a wrapper do not count, and layers
    without attention between others are left out.
    """

    def __init__(self, parts: Parts) -> None:
        """`parts` are those of `named_parts`. The model is not kept alive: what was recorded may outlive it."""
        self._kinds = [(name, (type(part), *part._modules)) for name, part in parts]
        self._model = weakref.ref(parts[0][1])
        self._places: dict[str, list[tuple[list[int], str, tuple[Any, ...]]]] | None = None
        self._shares: dict[str, HeadShare] = {}

    def of(self, name: str) -> int | None:
        """The depth of the module of this name; None if its place is not repeated."""
        if self._places is None:
            self._places = {}
            for part, kind in self._kinds:
                self._places.setdefault(_place(part), []).append((_numbers(part), part, kind))
        place = _place(name)
        alike = sorted(self._places.get(place, []), key=lambda x: x[:2]) if place != name else []
        own = next((kind for _, part, kind in alike if part == name), None)
        if own is None:
            return None
        return [part for _, part, other in alike if _same_kind(own, other)].index(name)

    def share(self, name: str) -> HeadShare:
        """Which of the heads of the module of this name this process has."""
        share = self._shares.get(name)
        if share is None:
            self._shares[name] = share = _head_share(_submodule(self._model(), name))
        return share

    def keep_shares(self, names: Iterable[str]) -> None:
        """Find the shares of these modules while the model is alive. Only processes of a group share heads."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for name in names:
                self.share(name)

    def selects(self, name: str, layer: int | str) -> bool:
        """Whether a module is this layer: by depth, by whole components of its name, or by a pattern for it."""
        if isinstance(layer, int):
            return self.of(name) == layer
        return f".{layer}." in f".{name}." or fnmatchcase(name, layer)


def _submodule(model: nn.Module | None, name: str) -> nn.Module | None:
    """The module of this name; None if there is none."""
    for key in name.split("."):
        model = None if model is None else model._modules.get(key)
    return model


def _same_kind(kind: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two modules at the same place are of one class, or consist of parts with the same names."""
    return kind[0] is other[0] or (len(kind) > 1 and kind[1:] == other[1:])


def _place(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]
