"""Where what was recorded is kept: by reference, as copies on the CPU, in files; and traces, which can be read again.

A trace is a folder: `trace.json` describes the calls, and each has its tensors in a safetensors file. There is no
pickle, so a trace from an unknown source can be opened. `trace.json` has the SHA-256 of each tensor and of its own
content: what is not what was written is refused by its name. Tensors are read into memory, so that a file that changes
later changes nothing.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..attention.energies import EnergyForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import causal, dense
from ..attention.modifiers import Modifier
from ..attention.normalizers import Normalizer, Softmax
from ..attention.parts import UnknownPartError
from ..files import DamagedFileError, read_object, replacing_folder, verified, write_list
from .call import Call
from .generation_passes import Intervals
from .trace import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from ..attention.masks import Mask
    from ..attention.parts import Part

MOST = 1 << 31
"""Bytes that may wait on the GPU for their copy; beyond, the caller waits for the oldest."""


class HostCopies:
    """Copies to page-locked memory on a stream of their own. A copy has its numbers after `wait`.

    The model may change a tensor in place before it was copied, so a clone is copied: within the GPU that takes a
    hundredth of the time.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._waiting: deque[tuple[torch.cuda.Event, int]] = deque()
        self._bytes = 0

    def copy(self, x: Tensor) -> Tensor:
        """A tensor on the CPU that has the numbers of x after `wait`."""
        while self._waiting and self._bytes + x.nbytes > MOST:
            self._wait_for_oldest()
        host = torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=True)
        stream = self._streams.get(x.device)
        if stream is None:
            stream = self._streams[x.device] = torch.cuda.Stream(x.device)
        source = x.detach().clone(memory_format=torch.contiguous_format)
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            host.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        source.record_stream(stream)  # its memory is not used again before the copy is done
        self._waiting.append((event, x.nbytes))
        self._bytes += x.nbytes
        return host

    def wait(self) -> None:
        """Wait for all copies."""
        while self._waiting:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        event, size = self._waiting.popleft()
        event.synchronize()
        self._bytes -= size


UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


WORDS = ("cpu", "qk")
DEVICES = ("cuda", "gpu", "mps", "xpu", "meta", "disk", "none", "true", "false", "")


class TensorStorage:
    """Keeps tensors by reference, as copies on the CPU, or in memory-mapped files, and counts their bytes.

    References take no time; what is counted is the memory that the model could otherwise free.
    """

    def __init__(self, where: str | Path | None, limit: str | int | None) -> None:
        if isinstance(where, str) and where not in WORDS and where.lower().partition(":")[0] in (*WORDS, *DEVICES):
            raise ValueError(f'keep is "cpu", "qk" or a folder to write to; got {where!r} (a folder: "./{where}")')
        self.cpu, self.values = where == "cpu", where != "qk"
        """`values`: whether values are kept; without them a call is proved at once."""
        self.folder = None if where is None or self.cpu or not self.values else Path(where)
        if self.folder is not None and not self.folder.parent.is_dir():
            raise ValueError(
                f'keep is "cpu", "qk" or a folder to write to; {self.folder} cannot be made: there is no '
                f"{self.folder.parent}"
            )
        self.copies = self.cpu or self.folder is not None
        """Whether tensors are copied, so that in-place changes do not reach them."""
        self.limit = None if limit is None else parse_bytes(limit)
        self.bytes = 0
        self._storages: set[int] = set()
        self._copies: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}  # of originals that are still alive
        self._host_copies = HostCopies()
        self._count = 0
        self._files: tempfile.TemporaryDirectory[str] | None = None

    def reserve(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all of these fit into the limit; if so, their bytes are counted."""
        new = {}
        for x in tensors:
            if self.copies:
                if self._copy_of(x) is None:
                    new[id(x)] = x.nbytes
            elif x.untyped_storage().data_ptr() not in self._storages:
                new[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        total = self.bytes + sum(new.values())
        if self.limit is not None and total > self.limit:
            return False
        self.bytes = total
        if not self.copies:
            self._storages.update(new)
        return True

    def store(self, x: Tensor, wait: bool = True) -> Tensor:
        """The tensor as it is kept. A tensor stored again unchanged, like the mask of all layers, is copied once.

        Without `wait`, a copy from a GPU has its numbers after `wait_for_copies`, and the model does not wait for it.
        """
        if not self.copies:
            return x.detach()
        kept = self._copy_of(x)
        if kept is None:
            # Outside of the model's inference mode a copy has a version counter, and needs no fingerprint.
            with torch.inference_mode(False):
                if self.cpu and x.is_cuda and not wait:
                    kept = self._host_copies.copy(x)
                else:
                    kept = x.detach().to("cpu", copy=True) if self.cpu else self._file(x.detach())
            if not x.is_inference():  # inference tensors have no version counter
                key, copies = id(x), self._copies
                copies[key] = weakref.ref(x, lambda _: copies.pop(key, None)), x._version, kept
        return kept

    def wait_for_copies(self) -> None:
        self._host_copies.wait()

    def _copy_of(self, x: Tensor) -> Tensor | None:
        """The copy of this tensor, if it was stored and has not changed since."""
        original, version, copy = self._copies.get(id(x), (None, None, None))
        return copy if original is not None and original() is x and version == x._version else None

    def _file(self, x: Tensor) -> Tensor:
        assert self.folder is not None
        if x.numel() == 0:
            return x.cpu()
        if self._files is None:
            self.folder.mkdir(exist_ok=True)
            self._files = tempfile.TemporaryDirectory(prefix="watched-", dir=self.folder)
        self._count += 1
        path = Path(self._files.name) / str(self._count)
        mapped = torch.from_file(str(path), shared=True, size=x.numel(), dtype=x.dtype)
        return mapped.view(x.shape).copy_(x)


def parse_bytes(size: str | int) -> int:
    """The number of bytes, from a number or a string such as "8GB"."""
    if isinstance(size, int) and size >= 0:
        return size
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?B?)\s*", str(size).upper())
    if match is None:
        raise ValueError(f'limit is a number of bytes or a string such as "8GB" or "500MB", got {size!r}')
    unit = match[2] if match[2].endswith("B") or not match[2] else match[2] + "B"
    return int(float(match[1]) * UNITS[unit])


def format_bytes(count: int) -> str:
    """A number of bytes with its unit: "1.5 GB"."""
    for unit in ("TB", "GB", "MB", "KB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.3g} {unit}"
    return f"{count} B"


VERSION = 2
"""The format that is written. Format 1 had no SHA-256 of `trace.json` itself; it is read."""
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


def save_trace(seen: Seen, path: str | Path) -> None:
    """What `Seen.save` does."""
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
        write_list(folder / "trace.json", about)


def load_trace(path: str | Path) -> Seen:
    """Read what `seen.save(path)` wrote. The tensors of a call are read on first use."""
    path = Path(path)
    file = path / "trace.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} is not a trace: there is no {file}; write one with seen.save(path)")
    advice = "get the trace again"
    about = read_object(file, advice, LARGEST)
    if about.get("format") != 1:
        about = verified(about, file, advice)
    about = _escaped(about)
    if about.get("format") not in (1, VERSION):
        raise ValueError(
            f"{path} has format {about.get('format')}; this version of regard reads formats 1 and {VERSION}"
        )
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


def _escaped(x: Any) -> Any:
    """The value with unprintable characters escaped, so that no name can control the terminal."""
    if isinstance(x, str):
        return x if x.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in x)
    if isinstance(x, list):
        return [_escaped(item) for item in x]
    return {_escaped(key): _escaped(item) for key, item in x.items()} if isinstance(x, dict) else x


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
