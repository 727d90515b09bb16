"""Part of an attention matrix as the Triton kernels take it: where its rows begin, which keys they see, how a weight
comes of a dot product, its row state, how it is cut into blocks. Nothing is copied that can be read in place.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from ...block_indices import positions, span
from ...normalizers.normalizer import RowState
from .. import ceil
from ..fast_triton_launch import start_by_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...energies.lazy_energy_matrix import EnergyMatrix
    from ...normalizers.normalizer import Normalizer
    from ...weights.lazy_weight_matrix import WeightMatrix

_MODIFIERS: tuple[list[str], ...] = ([], ["softcap"], ["alibi"], ["softcap", "alibi"])


def refusal(energies: EnergyMatrix, normalize: Normalizer) -> str | None:
    """Why the kernels do not apply; None where they do. A mask's intervals are looked at in `matrix_region`."""
    device = energies.a.device.type
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors are on {device}, not on a GPU"
    if not _triton():
        return "Triton is not installed"
    if energies.form.kernel != "dot":
        return "the energy is not a dot product"
    if energies.a.dtype == torch.float64:
        return "the kernels have no float64"
    if energies.a.shape[-1] > 256:
        return f"queries are {energies.a.shape[-1]} wide; the kernels hold up to 256"
    if not energies.form.scale > 0:
        return "the scale is not positive, so the best key is not the one of the largest dot product"
    if normalize.kernel != "softmax":
        return f"no kernel for {type(normalize).__name__}"
    if [x.kernel for x in energies.modifiers] not in _MODIFIERS:
        return f"no kernel for modifiers {', '.join(type(x).__name__ for x in energies.modifiers)}"
    return None


@cache
def _triton() -> bool:
    return find_spec("triton") is not None


@dataclass(frozen=True, slots=True, eq=False)
class MatrixRegion:
    """Some matrices, queries and a run of keys, as kernels take them."""

    a: Float[Tensor, "... q d"]
    b: Float[Tensor, "... k d"]
    q_at: Int[Tensor, " n"]
    """Where the queries of matrix n begin in `a`, in steps of `align` numbers: shared and transposed heads are read
    in place."""
    k_at: Int[Tensor, " n"]
    count: int
    key0: int
    place: Int[Tensor, " q"]
    """Which queries of the model these are."""
    slopes: Float[Tensor, " n"]
    start: Int[Tensor, "n_or_1 q"] | None
    stop: Int[Tensor, "n_or_1 q"] | None
    scale: float
    c: float
    """What the kernels multiply energies by: without modifiers they take dot products for energies."""
    ratio: float
    """The c of energies, over that of the formula: what a state is multiplied by where c multiplies the energies."""
    cap: float
    alibi: bool
    lag: int
    """How far ALiBi's positions, which `place` has, are ahead of the queries' own."""
    align: int

    @property
    def queries(self) -> int:
        return self.a.shape[-2]

    @property
    def keys(self) -> int:
        return self.b.shape[-2]

    def arguments(self) -> dict[str, Any]:
        """The arguments of every kernel."""
        return {
            "q": self.a,
            "k": self.b,
            "q_at": self.q_at,
            "k_at": self.k_at,
            "place": self.place,
            "slopes": self.slopes,
            "start": self.place if self.start is None else self.start,
            "stop": self.place if self.stop is None else self.stop,
            "queries": self.queries,
            "keys": self.keys,
            "q_row": self.a.stride(-2),
            "k_row": self.b.stride(-2),
            "bound_n": 0 if self.start is None or self.start.shape[0] == 1 else self.queries,
            "key0": self.key0,
            "scale": self.scale,
            "c": self.c,
            "cap": self.cap,
            "CAP": self.cap > 0,
            "ALIBI": self.alibi,
            "BOUNDED": self.start is not None,
            "D": self.a.shape[-1],
            "BD": max(16, 1 << (self.a.shape[-1] - 1).bit_length()),
            "ALIGN": self.align,
        }

    def precision(self) -> dict[str, Any]:
        """Tensor cores take half precision as it is; float32 would be cut to 10 bits unless told not to."""
        return {"PRECISION": "ieee" if self.a.dtype == torch.float32 else "tf32"}


def matrix_region(w: WeightMatrix, rows: Sequence[int], keys: range | None = None) -> MatrixRegion | None:
    """The chosen matrices with these queries and keys; None where the kernels do not apply."""
    energies, normalize = w.energies, w.normalize
    keys = range(energies.keys) if keys is None else keys
    if refusal(energies, normalize) is not None or not (w.entries and rows and keys):
        return None
    device, entries = energies.a.device, w.entries if isinstance(w.entries, range) else tuple(w.entries)
    rows = rows if isinstance(rows, range) else tuple(rows)
    modifiers: dict[str, Any] = {}
    for modifier in energies.modifiers:
        modifiers |= modifier.kernel_arguments()
    lag = modifiers.get("offset", 0)
    start = stop = None
    if energies.mask is not None:
        bounds = _bounds(energies, entries, rows, keys)
        if bounds is None:
            return None
        start, stop = bounds
    a = energies.a.detach()[..., span(rows, device), :]
    b = energies.b.detach()[..., keys.start : keys.stop, :]
    a, b = (x if x.stride(-1) == 1 else x.contiguous() for x in (a, b))
    shapes = (a.shape[:-2], a.stride()[:-2], 1), (b.shape[:-2], b.stride()[:-2], energies.groups)
    at, align = _beginnings(shapes, energies.batch, entries, device)
    slopes = at
    if "slopes" in modifiers:
        slopes = modifiers["slopes"].expand(energies.batch).reshape(-1)[list(entries)].to(device)
    # What energies are multiplied by before the row state is subtracted; the kernels take exp2.
    unit = 1.0 if energies.modifiers else energies.form.scale
    c = _float32(math.log2(math.e) / normalize.temperature * unit)
    return MatrixRegion(
        a=a,
        b=b,
        q_at=at[0],
        k_at=at[1],
        count=len(entries),
        key0=keys.start,
        place=_places(rows, lag, device),
        slopes=slopes,
        start=start,
        stop=stop,
        scale=energies.form.scale,
        c=c,
        ratio=c / unit * normalize.temperature,
        cap=modifiers.get("cap", 0.0),
        alibi="slopes" in modifiers,
        lag=lag,
        align=align,
    )


def _bounds(
    energies: EnergyMatrix, entries: Sequence[int], rows: Sequence[int], keys: range
) -> tuple[Tensor, Tensor] | None:
    """The first of these keys that each query sees and one past the last, [n or 1, q]; None where it is no interval."""
    device = energies.a.device
    interval = energies.interval(*(positions(span(x, device), device) for x in (entries, rows)))
    if interval is None:
        return None
    start, stop = ((x - keys.start).clamp(0, len(keys)).expand(-1, len(rows)).int().contiguous() for x in interval)
    return start, stop


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


@dataclass(frozen=True, slots=True, eq=False)
class ValueProducts:
    """Values and directions of some matrices."""

    v: Float[Tensor, "n k d"]
    g: Float[Tensor, "n q d"]
    finite: bool
    """Whether every value is finite."""

    @staticmethod
    def of(r: MatrixRegion, v: Tensor, g: Tensor, finite: bool) -> ValueProducts | None:
        """None where the kernels do not apply: they multiply numbers of one precision, that of queries and keys."""
        if not v.dtype == g.dtype == r.a.dtype == r.b.dtype or v.shape[-1] > 256 or v.shape[-1] < 1:
            return None
        v, g = (x if x.stride(-1) == 1 else x.contiguous() for x in (v, g))
        return ValueProducts(v, g, finite)

    def arguments(self) -> dict[str, Any]:
        width = self.v.shape[-1]
        align = 1 if (self.v.stride(0) % 16 or self.g.stride(0) % 16) else 16
        return {
            "g": self.g,
            "v": self.v,
            "g_at": _starts(self.g.shape[0], self.g.stride(0) // align, self.g.device),
            "v_at": _starts(self.v.shape[0], self.v.stride(0) // align, self.v.device),
            "g_row": self.g.stride(1),
            "v_row": self.v.stride(1),
            "DIRECTED": True,
            "FINITE": self.finite,
            "DV": width,
            "BDV": max(16, 1 << (width - 1).bit_length()),
            "PRODUCT_ALIGN": align,
        }


def no_products(r: MatrixRegion) -> dict[str, Any]:
    """The same arguments where weights are asked for: no kernel reads them."""
    own = {"g": r.a, "v": r.b, "g_at": r.q_at, "v_at": r.k_at, "g_row": r.a.stride(-2), "v_row": r.b.stride(-2)}
    return own | {"DIRECTED": False, "FINITE": True, "DV": 16, "BDV": 16, "PRODUCT_ALIGN": 1}


@lru_cache(maxsize=64)
def _starts(count: int, step: int, device: torch.device) -> Int[Tensor, " n"]:
    return torch.arange(count, device=device) * step


@dataclass(frozen=True, slots=True)
class KeyBlocks:
    """Keys cut into blocks of `width`; the last may be smaller. A kernel is compiled for each width, not length."""

    keys: int
    width: int

    @property
    def blocks(self) -> int:
        return ceil(self.keys, self.width)


@lru_cache(maxsize=64)
def edges_of(plan: KeyBlocks, device: torch.device) -> Int[Tensor, "blocks 2"]:
    """Where each block begins and ends."""
    first = torch.arange(plan.blocks) * plan.width
    last = (first + plan.width).clamp_max(plan.keys)
    return torch.stack([first, last], dim=1).int().to(device)


@lru_cache(maxsize=64)
def _all(plan: KeyBlocks, rows: int, device: torch.device) -> Int[Tensor, "1 blocks 4"]:
    """Without a mask every query sees every key; only a block that is not full needs looking at."""
    first, last = edges_of(plan, torch.device("cpu")).T
    full = last - first == plan.width
    some = rows * (last > first)
    ranges = torch.stack([torch.zeros_like(first), some * ~full, some, some], dim=1)
    return ranges[None].int().to(device)


def ranges_of(r: MatrixRegion, plan: KeyBlocks, tall: int) -> tuple[Tensor, Tensor]:
    """Blocks' edges, and for each [n or 1, blocks, 4] query blocks: from, all seen from, to, and to."""
    edges, rows = edges_of(plan, r.a.device), ceil(r.queries, tall)
    if r.start is None or r.stop is None:
        return edges, _all(plan, rows, r.a.device)
    at_once = max(1, (1 << 24) // (rows * plan.blocks))
    parts = [
        _seen(start, stop, edges, plan, rows, tall, r.keys)
        for start, stop in zip(r.start.split(at_once), r.stop.split(at_once), strict=True)
    ]
    return edges, torch.cat(parts)


def _seen(
    start: Tensor, stop: Tensor, edges: Tensor, plan: KeyBlocks, rows: int, tall: int, keys: int
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
    whole = (latest <= first) & (soonest >= last) & (last - first == plan.width)
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

    def options(self) -> dict[str, Any]:
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"BM": self.queries, "BN": self.keys, "num_warps": self.warps, "num_stages": self.stages, **limit}


def sizes(r: MatrixRegion, kernel: str) -> Sizes:
    """Measured on an H200 (benchmarks/statistics_gpu.py); small where a block is only emulated."""
    if r.a.device.type == "cpu":
        return Sizes(32, 32, 4, 1)
    wide = r.a.shape[-1] > 128
    if r.a.dtype == torch.float32:
        # Without tensor cores the products are unrolled: large blocks take minutes to compile, and spill.
        return Sizes(32, 32 if wide else 64, 4, 2)
    if kernel == "walk":
        return Sizes(64, 128, 4, 2, None if wide else 168)
    if kernel == "contributions":
        return Sizes(64, 64, 4, 2, programs=2)
    return Sizes(64, 64, 4, 2)


def programs(r: MatrixRegion, cut: Sizes) -> int:
    """How many programs a GPU works on at once."""
    if r.a.device.type == "cpu":
        return 2 * r.count
    return cut.programs * _processors(r.a.device)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def kernel_row_state(w: WeightMatrix, r: MatrixRegion) -> Float[Tensor, "n q"] | None:
    """One number per row, multiplied as the kernels multiply energies; None for rows of large energies, with two.

    c is rounded; scaling the state by the same rounded number makes the two cancel where a weight is large.
    """
    state = w.row_state()
    return None if state.anchor is not None else (state.rest.double() * r.ratio).float().contiguous()


def row_state(w: WeightMatrix) -> RowState | None:
    """The state of the chosen rows by one pass over the keys; None where the kernels do not apply, or one number per
    row is not enough: PyTorch's energies need a state of their own then."""
    r = matrix_region(w, w.queries)
    if r is None:
        return None
    from . import row_state_tile_triton

    state, cut = torch.empty(r.count, r.queries, device=r.a.device), sizes(r, "state")
    options = r.arguments() | r.precision() | cut.options() | {"state": state}
    start_by_name(row_state_tile_triton.row_state, (ceil(r.queries, cut.queries), r.count, 1), options)
    state = (state.double() / r.ratio).float()
    if w.sinks is not None:  # the rest of an empty row is +∞, and stays so: the sink gives no weight to any key
        state = torch.logaddexp(state, w.sinks[:, None] / w.normalize.temperature)
    return RowState(state) if w.normalize.holds(state) else None
