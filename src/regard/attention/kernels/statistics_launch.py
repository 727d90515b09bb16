"""Statistics of weights and contributions on a GPU: the host's side of the Triton kernels.

A kernel's arguments say where the rows of an attention matrix begin, which keys they see, how a weight comes of a dot
product, and how the matrix is cut into blocks. Nothing is copied that can be read in place.
"""

from __future__ import annotations

import math
import os
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from ..normalizers import RowState
from ..parts import positions, span
from ..statistics import WIDEST, Top, relative_error
from . import TRITON, ceil

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..energy_matrix import EnergyMatrix
    from ..normalizers import Normalizer
    from ..weights import Weights

    Arguments = dict[str, Any]
    """A kernel's arguments by name. There may be more than a kernel has."""


def start(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **options: int) -> None:
    """`kernel[grid](*arguments, **options)` on the device of the first tensor, which need not be the current one.

    Triton asks of each argument its type, whether it is 1 and whether 16 divides it, on every call: some 50 µs for a
    kernel with forty of them. Here it asks once for each kind of arguments.
    """
    device = next(x.device for x in arguments if isinstance(x, torch.Tensor))
    if device.type != "cuda":
        kernel[grid](*arguments, **options)
        return
    kind = (kernel, device, *options.values())
    kind += tuple((x.dtype, x.data_ptr() & 15) if isinstance(x, torch.Tensor) else x for x in arguments)
    with torch.cuda.device(device):
        if kind in _compiled:
            _compiled[kind][grid](*arguments)
            return
        if len(_compiled) >= KINDS:
            _compiled.clear()
        _compiled[kind] = kernel[grid](*arguments, **options)


_compiled: dict[Any, Any] = {}
KINDS = 4096
"""Kinds of arguments remembered before all are forgotten."""


def with_descriptors(device: torch.device, work: Callable[[], None]) -> None:
    """Start a kernel that describes tensors to the copy engine, for which Triton asks its allocator for memory.

    In a context of its own: the caller's allocator stays what it was.
    """
    import triton

    def inside() -> None:
        triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=device))
        work()

    copy_context().run(inside)


def start_by_name(kernel: Any, grid: tuple[int, int, int], options: Arguments) -> None:
    """`start` with the kernel's arguments by name."""
    compiler = {name: options[name] for name in ("num_warps", "num_stages", "maxnreg") if name in options}
    start(kernel, grid, *[options[name] for name in kernel.arg_names], **compiler)


_MODIFIERS: tuple[list[str], ...] = ([], ["softcap"], ["alibi"], ["softcap", "alibi"])


def refusal(energies: EnergyMatrix, normalize: Normalizer) -> str | None:
    """Why the kernels do not apply; None where they do. A mask's intervals are looked at in `kernel_arguments`."""
    device = energies.a.device.type
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors are on {device}, not on a GPU"
    if not TRITON:
        return "Triton is not installed"
    if energies.form.kernel != "dot":
        return "the energy is not a dot product"
    if energies.a.dtype == torch.float64:
        return "the kernels have no float64"
    if energies.a.shape[-1] > WIDEST:
        return f"queries are {energies.a.shape[-1]} wide; the kernels hold up to {WIDEST}"
    if not energies.form.scale > 0:
        return "the scale is not positive, so the best key is not the one of the largest dot product"
    if normalize.kernel != "softmax":
        return f"no kernel for {type(normalize).__name__}"
    if [x.kernel for x in energies.modifiers] not in _MODIFIERS:
        return f"no kernel for modifiers {', '.join(type(x).__name__ for x in energies.modifiers)}"
    return None


def kernel_arguments(w: Weights) -> Arguments | None:
    """What every kernel is given of the chosen matrices and queries; None where none applies.

    Beside them: "matrices", how many there are; "ratio", what a row state is multiplied by where c multiplies energies,
    over what it is in the formula; "lag", how far ALiBi's positions (`place`) are ahead of the queries' own.
    """
    energies, normalize = w.energies, w.normalize
    if refusal(energies, normalize) is not None or not (w.entries and w.queries and w.keys):
        return None
    device = energies.a.device
    entries, rows = (x if isinstance(x, range) else tuple(x) for x in (w.entries, w.queries))
    modifiers: dict[str, Any] = {}
    for modifier in energies.modifiers:
        modifiers |= modifier.kernel_arguments()
    lag = modifiers.get("offset", 0)
    start = stop = place = _places(rows, lag, device)
    causal = None if energies.mask is None else energies.mask.causal_offset
    if isinstance(causal, int):
        start, stop = _causal_bounds(causal, rows, energies.keys, device)
    elif energies.mask is not None:
        bounds = _bounds(energies, entries, rows)
        if bounds is None:
            return None
        start, stop = bounds
    a = energies.a.detach()[..., span(rows, device), :]
    a, b = (x if x.stride(-1) == 1 else x.contiguous() for x in (a, energies.b.detach()))
    shapes = (a.shape[:-2], a.stride()[:-2], 1), (b.shape[:-2], b.stride()[:-2], energies.groups)
    at, align = _beginnings(shapes, energies.batch, entries, device)
    slopes = at
    if "slopes" in modifiers:
        slopes = modifiers["slopes"].expand(energies.batch).reshape(-1)[list(entries)].to(device)
    # What energies are multiplied by before the row state is subtracted; the kernels take exp2. Without modifiers they
    # take dot products for energies.
    unit = 1.0 if energies.modifiers else energies.form.scale
    c, cap = _float32(math.log2(math.e) / normalize.temperature * unit), modifiers.get("cap", 0.0)
    # Where the queries and keys of each matrix begin, in steps of `align` numbers: shared and transposed heads are read
    # in place.
    places = {"q": a, "k": b, "q_at": at[0], "k_at": at[1], "q_row": a.stride(-2), "k_row": b.stride(-2)}
    lengths = {"queries": len(rows), "keys": w.keys, "matrices": len(entries)}
    mask = {"start": start, "stop": stop, "BOUNDED": energies.mask is not None}
    mask["causal"] = (causal, rows) if isinstance(causal, int) else None
    mask["bound_n"] = 0 if energies.mask is None or start.shape[0] == 1 else len(rows)
    formula = {"scale": energies.form.scale, "c": c, "cap": cap, "slopes": slopes, "place": place, "lag": lag}
    formula |= {"CAP": cap > 0, "ALIBI": "slopes" in modifiers, "ratio": c / unit * normalize.temperature}
    # Tensor cores take half precision as it is; float32 would be cut to 10 bits unless told not to.
    precision = "ieee" if a.dtype == torch.float32 else "tf32"
    widths = {"D": a.shape[-1], "BD": _power_of_two(a.shape[-1]), "ALIGN": align, "PRECISION": precision}
    return places | lengths | mask | formula | widths


def _power_of_two(width: int) -> int:
    """What a tensor core can multiply: at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def _bounds(energies: EnergyMatrix, entries: Sequence[int], rows: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    """The first key that each query sees and one past the last, [n or 1, q]; None where it is no interval."""
    device = energies.a.device
    interval = energies.interval(*(positions(span(x, device), device) for x in (entries, rows)))
    if interval is None:
        return None
    start, stop = (x.clamp(0, energies.keys).expand(-1, len(rows)).int().contiguous() for x in interval)
    return start, stop


# A model has the same causal mask in every layer.
@lru_cache(maxsize=16)
def _causal_bounds(offset: int, rows: Sequence[int], keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same of a causal mask: from the first key to i + offset."""
    stop = (positions(span(rows, device), device) + offset + 1).clamp(0, keys).int()[None].contiguous()
    return torch.zeros_like(stop), stop


@cache
def _float32(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float32))


Strided = tuple[tuple[int, ...], tuple[int, ...], int]
"""Leading sizes and strides of a tensor, and how many matrices of the batch share one of its own."""


# Remembered, since a model asks the same for every layer, and a copy to the device waits for all work before it.
@lru_cache(maxsize=256)
def _beginnings(
    tensors: tuple[Strided, Strided], batch: tuple[int, ...], entries: Sequence[int], device: torch.device
) -> tuple[Int[Tensor, "2 n"], int]:
    """Where each matrix of the queries and of the keys begins, in steps of how many numbers."""
    beginnings = []
    for shape, strides, groups in tensors:
        at = torch.zeros((), dtype=torch.long)
        for size, stride in zip(shape, strides, strict=True):
            at = at[..., None] + torch.arange(size) * stride
        if groups > 1:
            at = at.repeat_interleave(groups, dim=-1)
        beginnings.append(at.expand(batch).reshape(-1)[list(entries)])
    both = torch.stack(beginnings)
    align = 1 if bool((both % 16).any()) else 16
    return (both // align).to(device), align


@lru_cache(maxsize=16)
def _places(rows: Sequence[int], lag: int, device: torch.device) -> Int[Tensor, " q"]:
    return positions(span(rows, device), device).int() + lag


def _products(r: Arguments, v: Tensor, g: Tensor, finite: bool) -> Arguments | None:
    """The arguments of values and directions, [n, k, D_v] and [n, q, D_v].

    None where the kernels do not apply: they multiply numbers of one precision, that of queries and keys.
    """
    width = v.shape[-1]
    if not v.dtype == g.dtype == r["q"].dtype == r["k"].dtype or not 1 <= width <= WIDEST:
        return None
    v, g = (x if x.stride(-1) == 1 else x.contiguous() for x in (v, g))
    align = 1 if (v.stride(0) % 16 or g.stride(0) % 16) else 16
    own = {"g": g, "v": v, "g_row": g.stride(1), "v_row": v.stride(1)}
    own |= {f"{name}_at": _starts(x.shape[0], x.stride(0) // align, x.device) for name, x in (("g", g), ("v", v))}
    own |= {"DIRECTED": True, "FINITE": finite, "DV": width, "BDV": _power_of_two(width), "PRODUCT_ALIGN": align}
    return own


def _no_products(r: Arguments) -> Arguments:
    """The same arguments where weights are asked for: no kernel reads them."""
    own = {"g": r["q"], "v": r["k"], "g_at": r["q_at"], "v_at": r["k_at"], "g_row": r["q_row"], "v_row": r["k_row"]}
    return own | {"DIRECTED": False, "FINITE": True, "DV": 16, "BDV": 16, "PRODUCT_ALIGN": 1}


@lru_cache(maxsize=64)
def _starts(count: int, step: int, device: torch.device) -> Int[Tensor, " n"]:
    return torch.arange(count, device=device) * step


# Which blocks of queries see which blocks of keys. A kernel is compiled for each width of a block of keys, not length


@lru_cache(maxsize=64)
def _edges(keys: int, width: int, device: torch.device) -> Int[Tensor, "blocks 2"]:
    """Where each block of keys begins and ends; the last may be smaller."""
    first = torch.arange(ceil(keys, width)) * width
    return torch.stack([first, (first + width).clamp_max(keys)], dim=1).int().to(device)


@lru_cache(maxsize=64)
def _all(keys: int, width: int, rows: int, device: torch.device) -> Int[Tensor, "1 blocks 4"]:
    """Without a mask every query sees every key; only a block that is not full needs looking at."""
    first, last = _edges(keys, width, torch.device("cpu")).T
    full = last - first == width
    some = rows * (last > first)
    ranges = torch.stack([torch.zeros_like(first), some * ~full, some, some], dim=1)
    return ranges[None].int().to(device)


def _ranges(r: Arguments, width: int, tall: int) -> Int[Tensor, "n_or_1 blocks 4"]:
    """For each block of keys the blocks of queries that see some of it: from, all seen from, to, and to."""
    keys, rows, device = r["keys"], ceil(r["queries"], tall), r["q"].device
    if not r["BOUNDED"]:
        return _all(keys, width, rows, device)
    if r["causal"] is not None:
        return _causal_ranges(*r["causal"], keys, width, rows, tall, device)
    edges = _edges(keys, width, device)
    at_once = max(1, (1 << 24) // (rows * len(edges)))
    parts = zip(r["start"].split(at_once), r["stop"].split(at_once), strict=True)
    return torch.cat([_seen(start, stop, edges, width, rows, tall, keys) for start, stop in parts])


@lru_cache(maxsize=16)
def _causal_ranges(
    offset: int, queries: Sequence[int], keys: int, width: int, rows: int, tall: int, device: torch.device
) -> Int[Tensor, "1 blocks 4"]:
    """The same of a causal mask."""
    bounds = _causal_bounds(offset, queries, keys, device)
    return _seen(*bounds, _edges(keys, width, device), width, rows, tall, keys)


def _seen(
    start: Tensor, stop: Tensor, edges: Tensor, width: int, rows: int, tall: int, keys: int
) -> Int[Tensor, "n blocks 4"]:
    first, last = edges.T[:, :, None]  # [blocks, 1]
    live = stop > start

    def blocked(x: Tensor, fill: int) -> Tensor:
        """[n, rows, tall]"""
        return pad(x, (0, rows * tall - x.shape[1]), value=fill).view(-1, rows, tall)

    since = blocked(start.where(live, keys), keys).amin(-1)[:, None]  # [n, 1, rows]
    until = blocked(stop.where(live, 0), 0).amax(-1)[:, None]
    some = (since < last) & (until > first) & (last > first)  # [n, blocks, rows]
    latest, soonest = blocked(start, 0).amax(-1)[:, None], blocked(stop, keys).amin(-1)[:, None]
    whole = (latest <= first) & (soonest >= last) & (last - first == width)
    row = torch.arange(rows, device=start.device)
    begin = torch.where(some, row, rows).amin(-1)
    end = torch.where(some, row + 1, 0).amax(-1)
    run = torch.where(whole, row, rows).amin(-1)  # where the first run of whole blocks begins, and where it ends
    stopped = torch.where(~whole & (row > run[..., None]), row, rows).amin(-1)
    none = run == rows
    run, stopped = torch.where(none, end, run), torch.where(none, end, stopped)
    return torch.stack([torch.minimum(begin, end), run, stopped, torch.maximum(end, stopped)], dim=-1).int()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a kernel is cut: queries and keys of one block, warps, stages of the pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None
    """The most a thread may use, so that more programs fit a processor."""
    programs: int = 3
    """How many fit a processor."""

    def options(self) -> Arguments:
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"BM": self.queries, "BN": self.keys, "num_warps": self.warps, "num_stages": self.stages, **limit}


def sizes(r: Arguments, kernel: str) -> Sizes:
    """Measured on an H200 (benchmarks/statistics_gpu.py); small where a block is only emulated."""
    if r["q"].device.type == "cpu":
        return Sizes(32, 32, 4, 1)
    wide = r["q"].shape[-1] > 128
    if r["q"].dtype == torch.float32:
        # Without tensor cores the products are unrolled: large blocks take minutes to compile, and spill.
        return Sizes(32, 32 if wide else 64, 4, 2)
    if kernel == "walk":
        return Sizes(64, 128, 4, 2, None if wide else 168)
    if kernel == "contributions":
        return Sizes(64, 64, 4, 2, programs=2)
    return Sizes(64, 64, 4, 2)


def programs(r: Arguments, cut: Sizes) -> int:
    """How many programs a GPU works on at once."""
    if r["q"].device.type == "cpu":
        return 2 * int(r["matrices"])
    return cut.programs * _processors(r["q"].device)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _states(w: Weights, r: Arguments) -> Float[Tensor, "n q"] | None:
    """One number per row, multiplied as the kernels multiply energies; None for rows of large energies, with two.

    c is rounded; scaling the state by the same rounded number makes the two cancel where a weight is large.
    """
    state = w.row_state()
    return None if state.anchor is not None else (state.rest.double() * r["ratio"]).float().contiguous()


def row_state(w: Weights) -> RowState | None:
    """The state of the chosen rows by one pass over the keys; None where the kernels do not apply, or one number per
    row is not enough: PyTorch's energies need a state of their own then."""
    r = kernel_arguments(w)
    if r is None:
        return None
    from . import statistics_triton

    state, cut = torch.empty(r["matrices"], r["queries"], device=w.device), sizes(r, "state")
    options = r | cut.options() | {"state": state}
    start_by_name(statistics_triton.row_state, (ceil(r["queries"], cut.queries), r["matrices"], 1), options)
    state = (state.double() / r["ratio"]).float()
    if w.sinks is not None:  # the rest of an empty row is +∞, and stays so: the sink gives no weight to any key
        state = torch.logaddexp(state, w.sinks[:, None] / w.normalize.temperature)
    return RowState(state) if w.normalize.holds(state) else None


GROUP = 16
"""Rows or keys that the walk pools at once for a map, where its cells are as large."""
ROOM = 48 << 20
"""Bytes the sums of single programs may take before they are added up."""
SUMS_ROOM = 144 << 20
"""The same for contributions: with more programs for the keys, fewer share the queries, and each loads its keys and
values less often."""


def answers(
    w: Weights, asked: dict[str, Any], products: tuple[Tensor, Tensor, bool] | None = None
) -> dict[str, Tensor | Top] | None:
    """What is asked of the weights by name, with one leading dimension; None where the kernels do not apply.

    With `products` (values, directions, whether every value is finite) it is asked of contributions.
    """
    r = kernel_arguments(w)
    values = None if r is None else _no_products(r) if products is None else _products(r, *products)
    if r is None or values is None:
        return None
    state = _states(w, r)
    if state is None:
        return None
    r = r | values
    results: dict[str, Tensor | Top] = {}
    apart = {"offsets", "fidelity"} if asked.get("top") == 1 and products is None else {"top", "offsets", "fidelity"}
    whole = {name: x for name, x in asked.items() if name not in apart}
    if whole:
        results |= _walk(r, state, whole)
    if "top" in asked and "top" in apart:
        results["top"] = _largest(r, state, asked["top"])
    if "offsets" in asked:
        results["offsets"] = _offsets(r, state, asked["offsets"])
    if "fidelity" in asked:
        results["fidelity"] = _fidelity(r, state, *asked["fidelity"])
    return results


def _walk(r: Arguments, state: Float[Tensor, "n q"], asked: dict[str, Any]) -> dict[str, Tensor | Top]:
    """One walk for all that look at the whole matrix."""
    from . import statistics_triton

    device, directed, n, q, keys = r["q"].device, r["DIRECTED"], r["matrices"], r["queries"], r["keys"]
    cut = sizes(r, "contributions" if directed else "walk")
    blocks, ranges = ceil(keys, cut.keys), _ranges(r, cut.keys, cut.queries)
    # What is summed for every row.
    planes: list[str] = [name for name in ("entropy", "on") if name in asked]
    if directed and not asked.keys().isdisjoint({"total", "size", "spread", "on"}):
        sizes_too = ["size"] if {"size", "spread"} & asked.keys() else []
        planes = ["total", *sizes_too, *(["spread"] if "spread" in asked else []), *planes]
    most = (SUMS_ROOM if directed else ROOM) // (4 * len(planes) * n * q) if planes else blocks
    strips, parts = shares(blocks, ceil(q, cut.queries), n, most, programs(r, cut))
    sums = torch.zeros(len(planes), n, strips, q, device=device)
    options = r | cut.options() | dict.fromkeys(_QUESTIONS, False) | dict.fromkeys(_OUTPUTS, state)
    options |= {"chosen_n": 0, "map_rows": 1, "map_cols": 1, "ROW_GROUP": 1, "COL_GROUP": 1}
    options |= {"state": state, "edges": _edges(keys, cut.keys, device), "ranges": ranges, "blocks": blocks}
    options |= {"range_n": 0 if ranges.shape[0] == 1 else 4 * blocks, "turns": ceil(blocks, strips)}
    options |= {"SLABS": max(1, cut.queries // (16 * cut.warps)), "PRODUCT_PRECISION": r["PRECISION"]}
    options |= {"BULK": _bulk(r), "PTX": device.type == "cuda" and torch.version.hip is None}
    options |= {"ENTROPY": "entropy" in planes or "spread" in planes, "ON": "on" in planes}
    if directed:
        options |= {"sums": sums, "SUMS": bool(planes), "SIZES": "size" in planes}
    elif planes:
        options |= {"entropy": sums[0], "on": sums[-1]}
    if "on" in asked:
        chosen = asked["on"].float().contiguous()
        options |= {"chosen": chosen, "chosen_n": 0 if chosen.shape[0] == 1 else keys}
    by_key = [name for name in ("received", "received_size") if name in asked]
    for name in by_key:
        options |= {name: torch.empty(n, parts, keys, device=device), name.upper(): True}
    if "map" in asked:
        # Zeros are where a maximum begins: weights are not negative, and codes of contributions unsigned.
        cells = torch.zeros(n, *asked["map"][:2], dtype=torch.int32, device=device)
        options |= _cells(r, asked["map"], cut) | {"cells": cells.view(torch.uint32) if directed else cells}
    if "top" in asked:
        options |= {"best": torch.full((n, q), -(1 << 63), device=device), "BEST": True}
    with_descriptors(device, partial(start_by_name, statistics_triton.walk, (strips, n, parts), options))
    results: dict[str, Any] = dict(zip(planes, sums.sum(2).unbind(0), strict=True))
    if "entropy" in results:
        results["entropy"] *= -math.log(2)
    if "spread" in results:
        results["spread"] = _entropy(results["size"], results["spread"])
    results |= {name: options[name].sum(1) for name in by_key}
    if "map" in asked:
        results["map"] = number_of_code(cells) if directed else cells.view(torch.float32)
    if "top" in asked:
        results["top"] = Top(torch.empty(n, q, 1, device=device), torch.empty(n, q, 1, dtype=torch.long, device=device))
        options |= {"values": results["top"].values, "indices": results["top"].indices, "count": n * q, "BLOCK": 256}
        start_by_name(statistics_triton.best_keys, (ceil(n * q, 256), 1, 1), options)
    return {name: results[name] for name in asked}


def _bulk(r: Arguments) -> bool:
    """Whether the copy engine (Hopper and later) can read queries and directions: rows on multiples of 16 bytes."""
    device = r["q"].device
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    sides = [("q", r["ALIGN"], r["D"])] + ([("g", r["PRODUCT_ALIGN"], r["DV"])] if r["DIRECTED"] else [])
    return r["q"].dtype != torch.float32 and all(
        align == 16
        and r[x].data_ptr() % 16 == 0
        and r[f"{x}_row"] % 8 == 0
        and r[f"{x}_row"] >= width == _power_of_two(width)
        for x, align, width in sides
    )


_QUESTIONS = ("ENTROPY", "ON", "SUMS", "SIZES", "RECEIVED", "RECEIVED_SIZE", "BEST", "MAP", "SPLIT")
_OUTPUTS = (
    *("entropy", "on", "sums", "received", "received_size", "best"),
    *("cells", "row_cells", "col_cells", "chosen"),
)


def _offsets(r: Arguments, state: Float[Tensor, "n q"], offsets: list[int]) -> Float[Tensor, "n q offsets"]:
    from . import statistics_triton

    values = torch.empty(r["matrices"], r["queries"], len(offsets), device=r["q"].device)
    options = r | {"state": state, "values": values, "count": len(offsets), "BM": 32, "num_warps": 4}
    options["shifts"] = _shifts(tuple(n - r["lag"] for n in offsets), r["q"].device)
    start_by_name(statistics_triton.single_weights, (ceil(r["queries"], 32), r["matrices"], 1), options)
    return values


@lru_cache(maxsize=16)
def _shifts(offsets: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def _fidelity(
    r: Arguments, state: Float[Tensor, "n q"], v: Float[Tensor, "n k d"], out: Float[Tensor, "n q d"]
) -> Tensor:
    from . import statistics_triton

    cut = sizes(r, "fidelity")
    v, out = (x if x.stride(-1) == 1 else x.contiguous() for x in (v.to(r["q"].dtype), out))
    blocks = ceil(r["queries"], cut.queries)
    error, norm = torch.empty(2, r["matrices"], blocks, device=r["q"].device)
    matrices = torch.arange(r["matrices"], device=r["q"].device)
    options = r | cut.options() | {"state": state, "error": error, "norm": norm}
    options |= {"v": v, "v_at": matrices * v.stride(0), "v_row": v.stride(1), "DV": v.shape[-1]}
    options |= {"z": out, "z_at": matrices * out.stride(0), "z_row": out.stride(1)}
    options |= {"BDV": _power_of_two(v.shape[-1])}
    start_by_name(statistics_triton.fidelity, (blocks, r["matrices"], 1), options)
    error, norm = error.sum(1), norm.sum(1)
    return relative_error(error, norm)


def _entropy(size: Float[Tensor, "n q"], logs: Float[Tensor, "n q"]) -> Float[Tensor, "n q"]:
    """log S − Σ_j |C_ij| log |C_ij| / S with S = Σ_j |C_ij|, from logarithms of base 2; 0 where S is."""
    entropy = (size.log2() - logs / size) * math.log(2)
    return entropy.clamp_min_(0).masked_fill_(size == 0, 0)


def number_of_code(code: Int[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The −x of `statistics_triton.map_code`; 0 for what no number was joined with."""
    bits = code.view(torch.int32)
    return 0.0 - (((bits >> 1) & 0x7FFFFFFF) | (bits << 31)).view(torch.float32)


def shares(blocks: int, row_blocks: int, count: int, most: int, programs: int) -> tuple[int, int]:
    """How many programs share the keys of one matrix, `most` at most, and how many its queries.

    A GPU works on `programs` at once. Two rounds of them, so that none is the last for long, and each with several
    blocks of queries for every block of keys that it loads.
    """
    wanted = max(1, 2 * programs // count)
    strips = max(1, min(blocks, most, 64, wanted))
    return strips, max(1, min(row_blocks // 4, 32, wanted // strips))


def _cells(r: Arguments, size: tuple[int, int, str], cut: Sizes) -> Arguments:
    """The arguments of a walk that pools the matrix to rows × cols cells."""
    device = r["q"].device
    rows, height, splits = _cell_of(r["queries"], size[0], device)
    cols, width, splits_too = _cell_of(r["keys"], size[1], device)
    own = {"map_rows": size[0], "map_cols": size[1], "row_cells": rows, "col_cells": cols}
    own |= {"ROW_GROUP": min(height, cut.queries), "COL_GROUP": min(width, cut.keys // 4)}
    return own | {"MAP": True, "SPLIT": splits or splits_too}


@lru_cache(maxsize=32)
def _cell_of(length: int, cells: int, device: torch.device) -> tuple[Int[Tensor, " t"], int, bool]:
    """The cell of each position, as a table, because 64-bit division is slow on a GPU: cell r of R covers
    ⌊rT/R⌋ ≤ t < ⌊(r+1)T/R⌋ of T positions.

    And how many positions are pooled at once, a power of two, of which no cell has fewer, and whether some of these
    groups meet two cells.
    """
    group = min(GROUP, 1 << ((length // cells).bit_length() - 1))
    table = (((torch.arange(length) + 1) * cells - 1) // length).int().to(device)
    return table, group, length % cells != 0 or (length // cells) % group != 0


def _largest(r: Arguments, state: Float[Tensor, "n q"], count: int) -> Top:
    """The largest weights of every row, or contributions by size."""
    from . import statistics_triton

    shape, device, cut = (r["matrices"], r["queries"], count), r["q"].device, sizes(r, "top")
    result = Top(torch.empty(shape, device=device), torch.empty(shape, dtype=torch.long, device=device))
    options = r | cut.options() | {"state": state, "count": count, "SLOTS": max(2, 1 << (count - 1).bit_length())}
    options |= {"values": result.values, "indices": result.indices}
    start_by_name(statistics_triton.top, (ceil(r["queries"], cut.queries), r["matrices"], 1), options)
    return result
