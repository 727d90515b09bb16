"""Seen: the attention calls recorded by a `watch` block, in order.

While the model runs a call is appended. Only what later calls depend on is decided at once: whether keys are those of a
cache that grew, so that the old ones need not be kept. The rest is the work of `_settle`, when somebody asks.

Traces: recorded calls in a folder: `trace.json` describes them, and each has its tensors in a safetensors file.

There is no pickle, so a trace from an unknown source can be opened. `trace.json` has the SHA-256 of each tensor: one
that is not what was written is refused by its name. Tensors are read into memory, so that a file that changes later
changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..attention.energies import EnergyForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import causal, dense
from ..attention.modifiers import Modifier
from ..attention.normalizers import Normalizer, Softmax
from ..attention.part import UnknownPartError
from ..files import DamagedFileError, replacing_folder
from .call import IN_ITS_OWN_CODE, Call
from .storage import Intervals, TensorStorage, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table
    from torch import Tensor

    from ..attention.masks import Mask
    from ..attention.part import Part
    from ..viewer.export import Widget
    from .modules import ModuleDepths
    from .terminal import ResultTable
    from .text_models import TokenizedText

HEADER = ("layer", "kind", "heads", "queries", "keys", "computed by", "fidelity")
MATRICES = 8 << 30
"""Bytes of whole weight matrices that a watch without a limit of its own holds: of models that compute their weights in
their own code, whose queries and keys are not known."""
LONG_MASKS = 1 << 26
"""Masks of more bytes than this, all together, are shortened when the watch closes; others when somebody asks."""


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
        self.gradients = gradients
        self._storage = TensorStorage(None, None) if storage is None else storage
        self._depths = depths
        self._lock = threading.RLock()
        self._calls: list[Call] = []
        self._settled = 0  # so many calls are complete
        self._last: dict[str, Call] = {}  # the newest call of each module, which the next may continue
        self._pass: dict[str, bool] = {}  # the modules of this forward pass, and whether each continued its call
        self._missed: list[str] = []
        self._unseen: dict[str, str] = {}
        self._masks: dict[int, int] = {}  # bytes, by id
        self._matrices = 0  # bytes
        self._over_limit = 0
        self._advice = ""
        self._advise: Callable[[], str] | None = None

    # While the model runs

    def add(self, call: Call, output: Tensor | None = None, arrange: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add a call, or append it to the last call of its module if it is the next step of a generation.

        `output` and `arrange` are for its gradient, see `Call.follow_gradient`.
        """
        with self._lock:
            call.depths = self._depths
            if self.gradients:
                call.follow_gradient(output, arrange, self._storage.store)
            if call.origin != IN_ITS_OWN_CODE:
                self._replace_written(call)
            if self._storage.copies or not self._storage.values:
                with torch.no_grad():
                    self._add_now(call)
                return
            last = self._last.get(call.name)
            if last is not None and self._may_grow(last, call) and self._joins(last, call):
                return
            if not self._has_room(call):
                return
            self._calls.append(call)
            self._last[call.name] = call
            if call.mask is not None:
                self._masks[id(call.mask)] = call.mask.nbytes

    def _add_now(self, call: Call) -> None:
        """Keep a copy of the call, or prove it and keep no values."""
        call.complete()
        if call.after is not None or not self._storage.values:
            call.prove_now(self._storage.values)
        last = self._last.get(call.name)
        if (last is not None and self._joins(last, call)) or not self._has_room(call):
            return
        if self._storage.copies:
            call.place(functools.partial(self._storage.store, wait=False))
        self._calls.append(call)
        self._settled = len(self._calls)
        self._last[call.name] = call

    @staticmethod
    def _may_grow(last: Call, call: Call) -> bool:
        """Whether keys may be those of `last` in a longer tensor: joined at once, the old ones need not be kept."""
        return call.q is not None and call.keys > call.q.shape[-2] and not last.shares_keys(call)

    def _joins(self, last: Call, call: Call) -> bool:
        """Whether the call was appended to the last call of its module and fits into the limit."""
        storage, size = self._storage, 0
        if last.ablated != call.ablated:
            return False
        if storage.limit is not None and call.keys:
            size = sum(x.nbytes for x in (call.q, call.out) if x is not None)
            size += sum(x.nbytes for x in (call.k, call.v)) * min(call.queries, call.keys) // call.keys
            if storage.bytes + size > storage.limit:
                return False  # a call of its own will not fit either, and is counted
        if storage.copies:
            storage.wait_for_copies()  # its keys are compared with those kept
        if call.name in self._pass:  # the next forward pass
            self._pass = {}
        # On a GPU a comparison waits for all that was launched before it: one module of each forward pass compares.
        trusted = (
            call.q is not None and call.q.is_cuda and not storage.copies and next(iter(self._pass.values()), False)
        )
        joined = last.append(call, storage.store if storage.copies else None, trusted)
        self._pass[call.name] = joined
        storage.bytes += size if joined else 0
        return joined

    def _has_room(self, call: Call) -> bool:
        """Whether the call can be held; if not, it is counted, or named if its weights are a whole matrix."""
        storage = self._storage
        if storage.limit is not None and not storage.reserve(x for x in call.tensors() if x is not call.out):
            self._over_limit += 1
            return False
        if not call.matrix or storage.limit is not None or storage.copies:
            return True
        size = _weight_bytes(call)
        if self._matrices + size > MATRICES:
            self.add_missed(
                call.name,
                f"its weights, {format_bytes(size)}, are not held: {call.matrix}, so that they can be held only as "
                f"whole matrices, and those of this watch would take more than {format_bytes(MATRICES)}. Watch fewer "
                'layers (layers=…), keep="cpu" or a folder, or say what may be held (limit="64GB")',
            )
            return False
        self._matrices += size
        return True

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

    def add_unseen(self, name: str, reason: str) -> None:
        """A module that ran and called no attention; whether it should have is decided at the end."""
        self._unseen.setdefault(name, reason)

    def close(self, advise: Callable[[], str]) -> None:
        """At the end of the watch. `advise` says what to do if there was no call."""
        self._advise = advise
        if self._depths is not None:
            self._depths.keep_shares({call.name for call in self._calls})
        if self._storage.copies or sum(self._masks.values()) >= LONG_MASKS:
            self._settle()

    # When somebody asks

    def _settle(self) -> None:
        """Complete what was collected: energies, steps of a generation, short masks."""
        from .routing import suspend_reports

        with self._lock:
            self._storage.wait_for_copies()
            if self._settled == len(self._calls) and self._advise is None:
                return
            with suspend_reports(), torch.no_grad():
                pending = self._calls[self._settled :]
                del self._calls[self._settled :]
                last = {call.name: call for call in self._calls}
                for call in pending:
                    try:
                        self._settle_call(call, last)
                    except Exception as error:  # an error of ours must not stop the model
                        self.add_missed(call.name, f"the call could not be recorded: {error}")
                self._last, self._settled = last, len(self._calls)
                if self._advise is not None:
                    advise, self._advise = self._advise, None
                    self._finish(advise)

    def _settle_call(self, call: Call, last: dict[str, Call]) -> None:
        before = last.get(call.name)
        if call.q is not None:  # otherwise queries and keys are computed when this call is asked for
            call.complete()
            if before is not None and not call.later and self._joins(before, call):
                return
        self._calls.append(call)
        last[call.name] = call

    def _finish(self, advise: Callable[[], str]) -> None:
        self._last.clear()
        self._masks.clear()
        masks: dict[int, tuple[Tensor, Mask | None]] = {}
        for call in self._calls:
            call.shorten_masks(masks)
        if self._over_limit:
            assert self._storage.limit is not None
            limit = format_bytes(self._storage.limit)
            self._missed.append(f"{self._over_limit} calls were not kept: the limit is {limit}")
        self._name_unseen()
        self._advice = "" if self._calls else advise()

    def _name_unseen(self) -> None:
        """Name attention modules that ran unseen, without parts of modules whose own call was seen."""
        names = {*(call.name for call in self._calls), *(message.partition(": ")[0] for message in self._missed)}
        for name, reason in self._unseen.items():
            parents = name.split(".")
            if not any(".".join(parents[:count]) in names for count in range(1, len(parents) + 1)):
                self.add_missed(name, reason)

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

    def __getitem__(self, name: str | int | tuple[str, int]) -> Call:
        """By number, by name (whole components of the dotted path), or by name and index among calls of that name."""
        if isinstance(name, int):
            return self.calls[name]
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
        return [
            f"{call.name}: {format_bytes(_weight_bytes(call))}, {call.matrix}" for call in self.calls if call.matrix
        ]

    @property
    def prompt(self) -> int:
        """The number of queries of the first forward pass: the tokens of the prompt, before generated ones."""
        return self.calls[0].steps[0] if self.calls else 0

    @property
    def faithful(self) -> bool | None:
        """Whether all calls reproduce the model's outputs up to rounding, and every attention module that ran was seen.

        None if some were not measured (see `unproven`) and no other differs.
        """
        verdicts = [call.fidelity().faithful for call in self.calls]
        if self.missed or False in verdicts:
            return False
        return None if not verdicts or None in verdicts else True

    @property
    def unproven(self) -> list[Call]:
        """The calls whose fidelity cannot be measured here: their output was not seen, or was not W·v (dropout), or it
        was measured before they were written to a trace."""
        return [call for call in self.calls if call.fidelity().faithful is None]

    def save(self, path: str | Path) -> None:
        """Write a trace to a folder, as safetensors and JSON; `regard.load_trace` reads it.

        A call that can no longer be computed is listed in `missed` instead.
        """
        save(self, path)

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
        verdict = f"{fidelity.error:.1e}"
    else:
        verdict = f"{fidelity.error:.1e} NOT what was computed"
    if fidelity.error is not None and fidelity.remark:
        verdict += f" ({fidelity.remark})"
    steps = call.steps
    rows = str(queries) if len(steps) == 1 else f"{steps[0]} + {queries - steps[0]}"
    origin = f"{call.origin}, without {call.ablated}" if call.ablated else call.origin
    heads, whole = str(call.heads), call.all_heads
    if whole != call.heads:
        heads += f" of {whole}, from {call.head_numbers.start}"
    return call.name, call.kind, heads, rows, str(keys), origin, verdict


def _weight_bytes(call: Call) -> int:
    return math.prod(call.shape) * call.own.a.element_size()


def _first_names(calls: Sequence[Call]) -> str:
    names = list(dict.fromkeys(call.name for call in calls))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


VERSION = 1
LARGEST = 64 << 20
"""The maximum size of `trace.json`, in bytes."""

NUMBER, NOTHING = int | float, type(None)
ABOUT: dict[str, Any] = {"model": str, "tokens": list | NOTHING, "missed": list, "calls": list}
CALL: dict[str, Any] = {
    "name": str, "kind": str, "origin": str, "steps": list, "batch": list, "groups": int, "dropout": NUMBER,
    "form": dict, "normalize": dict, "mask": dict | NOTHING, "modifiers": list, "fidelity": NUMBER | NOTHING,
    "budget": NUMBER | NOTHING, "layer": int | NOTHING, "ablated": str | NOTHING, "sha256": dict | NOTHING,
}  # fmt: skip
"""The fields of `trace.json`, and of each call in it, with their types."""


def save(seen: Seen, path: str | Path) -> None:
    """Write a trace into a new folder. A call that can no longer be computed is listed in `missed` instead."""
    from safetensors.torch import save_file

    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists; choose another name for the trace, or remove it")
    from .. import __version__

    lost = [call for call in seen.calls if call.fidelity().lost]
    about: dict[str, Any] = {
        "format": VERSION,
        "regard": __version__,
        "torch": str(torch.__version__),
        "model": seen.model,
        "tokens": seen.tokens,
        "sides": seen.sides,
        "missed": [*seen.missed, *(f"{call.name}: {call.fidelity().remark}" for call in lost)],
        "calls": [],
    }
    with replacing_folder(path) as folder:
        for at, call in enumerate(call for call in seen.calls if call not in lost):
            description, tensors = _describe(call)
            # Queries, keys and values of one projection share a storage, which safetensors refuses.
            file = folder / f"{at:04}.safetensors"
            copies = {name: x.contiguous().clone() for name, x in tensors.items()}
            save_file(copies, file)
            about["calls"].append({**description, "sha256": {name: _digest(x) for name, x in sorted(copies.items())}})
        (folder / "trace.json").write_text(json.dumps(about, ensure_ascii=False, indent=1), encoding="utf-8")


def load_trace(path: str | Path) -> Seen:
    """Read what `seen.save(path)` wrote. The tensors of a call are read on first use."""
    path = Path(path)
    file = path / "trace.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} is not a trace: there is no {file}; write one with seen.save(path)")
    if file.stat().st_size > LARGEST:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes; at most {LARGEST:,} are read")
    try:
        about = _printable(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid: {error}") from None
    if not isinstance(about, dict) or "format" not in about:
        raise ValueError(f"{file} is not valid: it has no format")
    if about["format"] != VERSION:
        raise ValueError(f"{path} has format {about['format']}; this version of regard reads format {VERSION}")
    _check(file, "it", about, ABOUT)
    sides = about.get("sides", {})
    if not isinstance(sides, dict) or not all(_are_words(x) for x in [*(about.get("tokens") or []), *sides.values()]):
        raise ValueError(f"{file} is not valid: its tokens and sides should be lists of words")
    seen = Seen(about["model"])
    seen.tokens, seen.sides = about.get("tokens"), sides
    seen.missed.extend(str(x) for x in about["missed"])
    for at, description in enumerate(about["calls"]):
        _check(file, f"call {at}", description, CALL)
        if not all(isinstance(x, int) for x in (*description["steps"], *description["batch"])):
            raise ValueError(f"{file} is not valid: the steps and the batch of call {at} should be whole numbers")
        seen.calls.append(_read(path / f"{at:04}.safetensors", description))
    return seen


def _are_words(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(word, str) for word in x)


def _check(file: Path, what: str, value: Any, fields: dict[str, Any]) -> None:
    """Refuse a value without these fields of these types; the file may hold anything."""
    if not isinstance(value, dict):
        raise ValueError(f"{file} is not valid: {what} should be an object")
    for name, kind in fields.items():
        if not isinstance(value.get(name), kind):
            raise ValueError(f"{file} is not valid: {what} has no {name}, or one of the wrong type")


def _printable(x: Any) -> Any:
    """The value with unprintable characters escaped, so that no name can control the terminal."""
    if isinstance(x, str):
        return x if x.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in x)
    if isinstance(x, list):
        return [_printable(item) for item in x]
    return {_printable(key): _printable(item) for key, item in x.items()} if isinstance(x, dict) else x


def _describe(call: Call) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description of a call, and its tensors."""
    weights, v = call.weights, call.v
    rows, out = call.outputs()
    energies = weights.detached
    tensors = {"q": energies.a, "k": energies.b, "v": v, "out": out, "rows": rows}
    if weights.kernel_state is not None:
        tensors["state"] = weights.kernel_state
    description: dict[str, Any] = {
        "name": call.name,
        "kind": call.kind,
        "origin": call.origin,
        "layer": call.layer,
        "ablated": call.ablated,
        "steps": call.steps,
        "batch": list(energies.batch),
        "groups": energies.groups,
        "dropout": call.dropout,
        "form": _part(energies.form, tensors, call.name),
        "normalize": _part(call.normalize, tensors, call.name),
        "mask": _mask(energies, tensors),
        "modifiers": [_part(x, tensors, call.name, at) for at, x in enumerate(energies.modifiers)],
    }
    if call.after is not None or call.measured is not None:
        description["fidelity"], description["budget"] = call.fidelity()[:2]
    return description, {name: x.detach().cpu() for name, x in tensors.items()}


def _part(part: Part, tensors: dict[str, Tensor], name: str, at: int | None = None) -> dict[str, Any]:
    try:
        description, own = part.describe(at)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; a trace cannot hold it, so leave it out (layers=…)") from None
    tensors |= own
    return description


def _mask(energies: EnergyMatrix, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    mask, device = energies.mask, energies.a.device
    if mask is None:
        return None
    if mask.causal_offset is not None:
        return {"causal": mask.causal_offset}
    bounds = energies.intervals()
    if bounds is not None:
        tensors["start"], tensors["stop"] = _interval_tensors(energies, *bounds)
        return {"intervals": True}
    tensors["mask"] = mask.dense(energies.batch, energies.queries, energies.keys, device)
    return {"dense": True}


def _interval_tensors(energies: EnergyMatrix, *bounds: Tensor) -> list[Tensor]:
    """Intervals of all matrices, [n or 1, q or 1], as [*batch, q] without last dimensions in which all are equal."""
    full = [x.expand(energies.count, energies.queries).reshape(*energies.batch, energies.queries) for x in bounds]
    while full[0].dim() > 1 and all(bool((x == x[..., :1, :]).all()) for x in full):
        full = [x[..., 0, :] for x in full]
    return full


def _read(file: Path, description: dict[str, Any]) -> Call:
    if not file.is_file():
        raise FileNotFoundError(f"the trace is incomplete: there is no {file}")

    def energies(call: Call) -> EnergyMatrix:
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(file.read_bytes())  # not mapped: a file that is cut short would end the process (SIGBUS)
            _check_digests(file, tensors, description.get("sha256"))
            return _fill(call, tensors, description)
        except (UnknownPartError, DamagedFileError):
            raise
        except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{file} does not match trace.json: {type(error).__name__}: {error}") from None

    fields: dict[str, Any] = {name: description[name] for name in ("name", "origin", "steps", "dropout")}
    fields |= {"layer": description.get("layer"), "ablated": description.get("ablated") or ""}
    return Call(None, energies=energies, cross=description["kind"] == "cross", **fields)


def _digest(x: Tensor) -> str:
    """The SHA-256 of a tensor: its type, its shape and its numbers."""
    digest = hashlib.sha256(f"{x.dtype} {list(x.shape)} ".encode())
    digest.update(x.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_digests(file: Path, tensors: dict[str, Tensor], expected: dict[str, Any] | None) -> None:
    """Refuse tensors that are not those that were written; a trace of an earlier version has no digests."""
    if expected is None:
        return
    for name in sorted({*tensors, *expected}):
        if name not in tensors:
            raise DamagedFileError(
                f"{file} is damaged: it has no tensor {name!r}, which was written; get the trace again"
            )
        if name not in expected or _digest(tensors[name]) != expected[name]:
            raise DamagedFileError(
                f"{file} is damaged: its tensor {name!r} is not the one that was written (SHA-256); get the trace again"
            )


def _fill(call: Call, tensors: dict[str, Tensor], description: dict[str, Any]) -> EnergyMatrix:
    """The energies of a call, which gets what else was written."""
    energies = EnergyMatrix(
        tensors["q"],
        tensors["k"],
        EnergyForm.rebuild(description["form"], tensors),
        tuple(description["batch"]),
        tuple(Modifier.rebuild(x, tensors, at) for at, x in enumerate(description["modifiers"])),
        _read_mask(description["mask"], tensors),
        description["groups"],
    )
    state = tensors.get("state")
    call.state = None if state is None else state.view(*energies.batch, energies.queries)
    call.normalize = _normalizer(description["normalize"], tensors)
    call.v, call.out, call.rows = tensors["v"], tensors["out"], tensors["rows"]
    call.measured, call.budget = description.get("fidelity"), description.get("budget")
    return energies


def _normalizer(description: dict[str, Any], tensors: dict[str, Tensor]) -> Normalizer:
    if "sinks" in tensors:  # written before sinks were part of the softmax
        return Softmax(sink=tensors["sinks"])
    return Normalizer.rebuild(description, tensors)


def _read_mask(description: dict[str, Any] | None, tensors: dict[str, Tensor]) -> Mask | None:
    if description is None:
        return None
    if "causal" in description:
        return causal(description["causal"])
    if "intervals" in description:
        return Intervals(tensors["start"], tensors["stop"])
    return dense(tensors["mask"])
