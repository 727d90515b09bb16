"""Traces: recorded calls in a folder: `trace.json` describes them, and each has its tensors in a safetensors file.

There is no pickle, so a trace from an unknown source can be opened. `trace.json` has the SHA-256 of each tensor: one
that is not what was written is refused by its name. Tensors are read into memory, so that a file that changes later
changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...atomic_write import replacing_folder
from ...attention import Modifier, Normalizer, Softmax, causal, dense
from ...attention.energies.energy_forms import EnergyForm
from ...attention.energies.lazy_energy_matrix import EnergyMatrix
from ...attention.part import UnknownPartError
from ...json_file import DamagedFileError
from .attention_call import Call
from .call_inputs_and_output import Record
from .interval_mask import Intervals
from .recorded_calls import Seen
from .recording import added_product  # noqa: F401  a part of older traces

if TYPE_CHECKING:
    from torch import Tensor

    from ...attention import Mask
    from ...attention.part import Part

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
    from ... import __version__

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
        "dropout": call.record.dropout,
        "form": _part(energies.form, tensors, call.name),
        "normalize": _part(call.record.normalize, tensors, call.name),
        "mask": _mask(energies, tensors),
        "modifiers": [_part(x, tensors, call.name, at) for at, x in enumerate(energies.modifiers)],
    }
    if call.record.after is not None or call.record.measured is not None:
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

    def make() -> Record:
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(file.read_bytes())  # not mapped: a file that is cut short would end the process (SIGBUS)
            _check_digests(file, tensors, description.get("sha256"))
            return _record(tensors, description)
        except (UnknownPartError, DamagedFileError):
            raise
        except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{file} does not match trace.json: {type(error).__name__}: {error}") from None

    return Call(description["name"], make, layer=description.get("layer"), ablated=description.get("ablated") or "")


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


def _record(tensors: dict[str, Tensor], description: dict[str, Any]) -> Record:
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
    return Record(
        energies,
        tensors["v"],
        tensors["out"],
        description["origin"],
        normalize=_normalizer(description["normalize"], tensors),
        state=None if state is None else state.view(*energies.batch, energies.queries),
        dropout=description["dropout"],
        cross=description["kind"] == "cross",
        rows=tensors["rows"],
        measured=description.get("fidelity"),
        budget=description.get("budget"),
        steps=description["steps"],
    )


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
