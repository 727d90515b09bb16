"""Traces: what was seen, in a folder: `trace.json` says what there is, one safetensors file per call holds its numbers.

No pickle: a trace from a stranger can be opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...attention import Modifier, Normalizer, causal, dense
from ...attention.energies.energy_forms import EnergyForm
from ...attention.energies.energy_matrix import EnergyMatrix
from ...attention.part import UnknownPartError
from ...files import replacing_folder
from .call import Call
from .interval_mask import Intervals
from .record import Record
from .seen import Seen

if TYPE_CHECKING:
    from torch import Tensor

    from ...attention import Mask
    from ...attention.part import Part

VERSION = 1
LARGEST = 64 << 20
"""Bytes of `trace.json` that are read: it holds names and words, and a file larger than that holds something else."""

NUMBER, NOTHING = int | float, type(None)
ABOUT: dict[str, Any] = {"model": str, "tokens": list | NOTHING, "missed": list, "calls": list}
CALL: dict[str, Any] = {
    "name": str, "kind": str, "origin": str, "steps": list, "batch": list, "groups": int, "dropout": NUMBER,
    "form": dict, "normalize": dict, "mask": dict | NOTHING, "modifiers": list, "fidelity": NUMBER | NOTHING,
    "budget": NUMBER | NOTHING,
}  # fmt: skip
"""What `trace.json` says, and of each call."""


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
            described, tensors = _written(call)
            # One storage may be shared by several (queries, keys and values of one projection): each gets its own.
            file = folder / f"{at:04}.safetensors"
            save_file({name: x.contiguous().clone() for name, x in tensors.items()}, file)
            about["calls"].append(described)
        (folder / "trace.json").write_text(json.dumps(about, ensure_ascii=False, indent=1), encoding="utf-8")


def load_trace(path: str | Path) -> Seen:
    """What `seen.save(path)` wrote. Each call's numbers are read when they are asked for."""
    path = Path(path)
    file = path / "trace.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} is no trace: there is no {file}; write one with seen.save(path)")
    if file.stat().st_size > LARGEST:
        raise ValueError(f"{file} is {file.stat().st_size:,} bytes; a trace's is at most {LARGEST:,}")
    try:
        about = _printable(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not a trace's: {error}") from None
    if not isinstance(about, dict) or "format" not in about:
        raise ValueError(f"{file} is not a trace's: it names no format")
    if about["format"] != VERSION:
        raise ValueError(f"{path} is of format {about['format']}; this version of regard reads {VERSION}")
    _check(file, "it", about, ABOUT)
    tokens = about["tokens"] or []
    if not all(_words(x) for x in tokens):
        raise ValueError(f"{file} is not a trace's: its tokens should be lists of words")
    sides = about.get("sides", {})
    if not isinstance(sides, dict) or not all(_words(x) for x in sides.values()):
        raise ValueError(f"{file} is not a trace's: its sides should be lists of words")
    seen = Seen(about["model"])
    seen.sides = sides
    seen.tokens, seen.missed = about["tokens"], [str(x) for x in about["missed"]]
    for at, described in enumerate(about["calls"]):
        _check(file, f"call {at}", described, CALL)
        if not all(isinstance(x, int) for x in (*described["steps"], *described["batch"])):
            raise ValueError(f"{file} is not a trace's: the steps and the batch of call {at} should be whole numbers")
        seen.calls.append(_read(path / f"{at:04}.safetensors", described))
    return seen


def _words(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(word, str) for word in x)


def _check(file: Path, what: str, given: Any, fields: dict[str, Any]) -> None:
    """Refuse what has not these fields of these types; a file from a stranger may hold anything."""
    if not isinstance(given, dict):
        raise ValueError(f"{file} is not a trace's: {what} should be an object")
    for name, kind in fields.items():
        if not isinstance(given.get(name), kind):
            raise ValueError(f"{file} is not a trace's: {what} has no {name}, or not one of the right type")


def _printable(x: Any) -> Any:
    """The same with every character written out that is not to be printed: a name must not command the terminal."""
    if isinstance(x, str):
        return x if x.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in x)
    if isinstance(x, list):
        return [_printable(one) for one in x]
    return {_printable(key): _printable(one) for key, one in x.items()} if isinstance(x, dict) else x


def _written(call: Call) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A call as words and as tensors."""
    weights, v = call.weights, call.v
    rows, out = call.outputs()
    energies = weights.detached
    tensors = {"q": energies.a, "k": energies.b, "v": v, "out": out, "rows": rows}
    for name, x in (("state", weights.kernel_state), ("sinks", call.record.sinks)):
        if x is not None:
            tensors[name] = x
    described: dict[str, Any] = {
        "name": call.name,
        "kind": call.kind,
        "origin": call.origin,
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
        described["fidelity"], described["budget"] = call.fidelity()[:2]
    return described, {name: x.detach().cpu() for name, x in tensors.items()}


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
        tensors["start"], tensors["stop"] = _alike(energies, *bounds)
        return {"intervals": True}
    tensors["mask"] = mask.dense(energies.batch, energies.queries, energies.keys, device)
    return {"dense": True}


def _alike(energies: EnergyMatrix, *bounds: Tensor) -> list[Tensor]:
    """Intervals of all matrices, [n or 1, q or 1], as [*batch, q] without the last dimensions in which all agree."""
    full = [x.expand(energies.count, energies.queries).reshape(*energies.batch, energies.queries) for x in bounds]
    while full[0].dim() > 1 and all(bool((x == x[..., :1, :]).all()) for x in full):
        full = [x[..., 0, :] for x in full]
    return full


def _read(file: Path, described: dict[str, Any]) -> Call:
    if not file.is_file():
        raise FileNotFoundError(f"the trace has lost {file}")

    def make() -> Record:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return _record(load_file(file), described)
        except UnknownPartError:
            raise
        except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{file} does not hold what the trace says: {type(error).__name__}: {error}") from None

    return Call(described["name"], make)


def _record(tensors: dict[str, Tensor], described: dict[str, Any]) -> Record:
    energies = EnergyMatrix(
        tensors["q"],
        tensors["k"],
        EnergyForm.rebuild(described["form"], tensors),
        tuple(described["batch"]),
        tuple(Modifier.rebuild(x, tensors, at) for at, x in enumerate(described["modifiers"])),
        _mask_of(described["mask"], tensors),
        described["groups"],
    )
    state = tensors.get("state")
    return Record(
        energies,
        tensors["v"],
        tensors["out"],
        described["origin"],
        normalize=Normalizer.rebuild(described["normalize"], tensors),
        state=None if state is None else state.view(*energies.batch, energies.queries),
        sinks=tensors.get("sinks"),
        dropout=described["dropout"],
        cross=described["kind"] == "cross",
        rows=tensors["rows"],
        measured=described.get("fidelity"),
        budget=described.get("budget"),
        steps=described["steps"],
    )


def _mask_of(described: dict[str, Any] | None, tensors: dict[str, Tensor]) -> Mask | None:
    if described is None:
        return None
    if "causal" in described:
        return causal(described["causal"])
    if "intervals" in described:
        return Intervals(tensors["start"], tensors["stop"])
    return dense(tensors["mask"])
