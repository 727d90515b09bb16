"""Statistics of weights and contributions on a GPU: the host's side.

Part of an attention matrix as the Triton kernels take it: where its rows begin, which keys they see, how a weight
comes of a dot product, its row state, how it is cut into blocks. Nothing is copied that can be read in place.
"""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.functional import pad

from ..blocks import positions, span
from ..normalizers import RowState
from ..statistics import Top
from . import ceil

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ..energy_matrix import EnergyMatrix
    from ..normalizers import Normalizer
    from ..weights import WeightMatrix, Weights


def start(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **options: int) -> None:
    """`kernel[grid](*arguments, **options)` on the device of the first tensor, which need not be the current one."""
    device = next(x.device for x in arguments if isinstance(x, torch.Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*arguments, **options)


def start_by_name(kernel: Any, grid: tuple[int, int, int], options: dict[str, Any]) -> None:
    """`start` with the kernel's arguments by name; there may be more than it has."""
    compiler = {name: options[name] for name in ("num_warps", "num_stages", "maxnreg") if name in options}
    start(kernel, grid, *[options[name] for name in kernel.arg_names], **compiler)


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
    from . import statistics_triton

    state, cut = torch.empty(r.count, r.queries, device=r.a.device), sizes(r, "state")
    options = r.arguments() | r.precision() | cut.options() | {"state": state}
    start_by_name(statistics_triton.row_state, (ceil(r.queries, cut.queries), r.count, 1), options)
    state = (state.double() / r.ratio).float()
    if w.sinks is not None:  # the rest of an empty row is +∞, and stays so: the sink gives no weight to any key
        state = torch.logaddexp(state, w.sinks[:, None] / w.normalize.temperature)
    return RowState(state) if w.normalize.holds(state) else None


GROUP = 16
"""Rows or keys that the walk pools at once for a map, where its cells are as large."""
MOST = 32
"""The most weights or contributions of a row that the kernel keeps in registers."""
ROOM = 48 << 20
"""Bytes the sums of single programs may take before they are added up."""
SUMS_ROOM = 144 << 20
"""Bytes that the row sums of single programs may take: with more programs for the keys, fewer share the queries, and
each loads its keys and values less often."""


def stats(
    w: Weights,
    *,
    entropy: bool,
    top: int | None,
    received: bool,
    offsets: Sequence[int] | None,
    columns: Bool[Tensor, "n_or_1 k"] | None,
    size: tuple[int, int] | None,
    pool: Literal["max", "mean"],
    fidelity: tuple[Float[Tensor, "n k d"], Float[Tensor, "n q d"]] | None,
) -> dict[str, Tensor | Top] | None:
    """The results of `Weights.stats` by name, with one leading dimension; None where the kernels do not apply."""
    if (top is not None and top > MOST) or (size is not None and pool == "mean"):
        return None
    r = matrix_region(w, w.queries)
    if r is None or (fidelity is not None and fidelity[0].shape[-1] > 256):
        return None
    state = kernel_row_state(w, r)
    if state is None:
        return None
    chosen = None if columns is None else columns.float()
    results = _walk(r, state, entropy, chosen, received, size)
    if top is not None:
        results["top"] = largest(r, state, top)
    if offsets is not None:
        results["offsets"] = _offsets(r, state, list(offsets))
    if fidelity is not None:
        results["fidelity"] = _fidelity(r, state, *fidelity)
    return results


def pooled(w: Weights, cols: Sequence[int], size: tuple[int, int], pool: str) -> Tensor | None:
    """The weights of these columns pooled to `size` cells [n, *size]; None where the kernels do not apply."""
    if not isinstance(cols, range) or cols.step != 1 or pool == "mean":
        return None
    r = matrix_region(w, w.queries, cols)
    state = None if r is None else kernel_row_state(w, r)
    if r is None or state is None:
        return None
    return _walk(r, state, False, None, False, size)["map"]  # type: ignore[return-value]


def _walk(
    r: MatrixRegion,
    state: Float[Tensor, "n q"],
    entropy: bool,
    chosen: Float[Tensor, "n_or_1 k"] | None,
    received: bool,
    cells: tuple[int, int] | None,
) -> dict[str, Tensor | Top]:
    """One walk for all that look at the whole matrix."""
    answers: dict[str, Tensor | Top] = {}
    if not (entropy or chosen is not None or received or cells):
        return answers
    cut, device = sizes(r, "walk"), r.a.device
    plan = KeyBlocks(r.keys, cut.keys)
    sums = entropy + (chosen is not None)
    most = ROOM // (4 * sums * r.count * r.queries) if sums else plan.blocks
    strips, parts = shares(plan.blocks, ceil(r.queries, cut.queries), r.count, most, programs(r, cut))
    zeros = torch.zeros(sums, r.count, strips, r.queries, device=device)
    taken = torch.empty(r.count, parts, r.keys, device=device) if received else zeros
    # Zeros are where a maximum begins, since weights are not negative.
    shown = torch.zeros(r.count, *cells, device=device) if cells else zeros
    own: dict[str, Any] = cell_arguments(r, cells, cut, plan) if cells else {}
    launch_walk(
        r,
        state,
        cut,
        plan,
        (strips, r.count, parts),
        entropy=zeros[0] if entropy else zeros,
        on=zeros[-1] if chosen is not None else zeros,
        chosen=zeros if chosen is None else chosen.contiguous(),
        chosen_n=0 if chosen is None or chosen.shape[0] == 1 else r.keys,
        received=taken,
        cells=shown.view(torch.int32),
        ENTROPY=entropy,
        ON=chosen is not None,
        RECEIVED=received,
        **own,
    )
    if entropy:
        answers["entropy"] = zeros[0].sum(1) * -math.log(2)
    if chosen is not None:
        answers["on"] = zeros[-1].sum(1)
    if received:
        answers["received"] = taken.sum(1)
    if cells:
        answers["map"] = shown
    return answers


def _offsets(r: MatrixRegion, state: Float[Tensor, "n q"], offsets: list[int]) -> Float[Tensor, "n q offsets"]:
    from . import statistics_triton

    values = torch.empty(r.count, r.queries, len(offsets), device=r.a.device)
    options = r.arguments() | {"state": state, "values": values, "count": len(offsets), "BM": 32, "num_warps": 4}
    options["shifts"] = _shifts(tuple(n - r.lag for n in offsets), r.a.device)
    start_by_name(statistics_triton.single_weights, (ceil(r.queries, 32), r.count, 1), options)
    return values


@lru_cache(maxsize=16)
def _shifts(offsets: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def _fidelity(
    r: MatrixRegion, state: Float[Tensor, "n q"], v: Float[Tensor, "n k d"], out: Float[Tensor, "n q d"]
) -> Tensor:
    from . import statistics_triton

    cut = sizes(r, "fidelity")
    v, out = (x if x.stride(-1) == 1 else x.contiguous() for x in (v.to(r.a.dtype), out))
    blocks = ceil(r.queries, cut.queries)
    error, norm = torch.empty(2, r.count, blocks, device=r.a.device)
    matrices = torch.arange(r.count, device=r.a.device)
    options = r.arguments() | r.precision() | cut.options() | {"state": state, "error": error, "norm": norm}
    options |= {"v": v, "v_at": matrices * v.stride(0), "v_row": v.stride(1), "DV": v.shape[-1]}
    options |= {"z": out, "z_at": matrices * out.stride(0), "z_row": out.stride(1)}
    options |= {"BDV": max(16, 1 << (v.shape[-1] - 1).bit_length())}
    start_by_name(statistics_triton.fidelity, (blocks, r.count, 1), options)
    error, norm = error.sum(1), norm.sum(1)
    return torch.where(error == 0, 0, error.sqrt() / norm.sqrt())


def contribution_stats(
    w: Weights,
    v: Float[Tensor, "n k d"],
    g: Float[Tensor, "n q d"],
    *,
    finite: bool,
    total: bool,
    size: bool,
    spread: bool,
    top: int | None,
    received: bool,
    received_size: bool,
    columns: Bool[Tensor, "n_or_1 k"] | None,
    cells: tuple[int, int] | None,
    pool: Literal["max", "mean"],
) -> dict[str, Tensor | Top] | None:
    """The results of `Contributions.stats` by name, with one leading dimension; None where no kernel applies.

    `finite` tells whether every value is.
    """
    refused = (top is not None and top > MOST) or (cells is not None and pool == "mean")
    r = None if refused else matrix_region(w, w.queries)
    products = None if r is None else ValueProducts.of(r, v, g, finite)
    if r is None or products is None:
        return None
    state = kernel_row_state(w, r)
    if state is None:
        return None
    results: dict[str, Tensor | Top] = {}
    if total or size or spread or received or received_size or columns is not None or cells:
        results |= _contributions_walk(r, state, products, total, size, spread, received, received_size, columns, cells)
    if top is not None:
        results["top"] = largest(r, state, top, products)
    return results


def _contributions_walk(
    r: MatrixRegion,
    state: Float[Tensor, "n q"],
    products: ValueProducts,
    total: bool,
    size: bool,
    spread: bool,
    received: bool,
    received_size: bool,
    columns: Bool[Tensor, "n_or_1 k"] | None,
    cells: tuple[int, int] | None,
) -> dict[str, Tensor]:
    """One walk for all that look at the whole matrix."""
    cut, device = sizes(r, "contributions"), r.a.device
    plan = KeyBlocks(r.keys, cut.keys)
    planes = {"total": True, "size": size or spread, "logs": spread, "on": columns is not None}
    kinds = [name for name, flag in planes.items() if flag]
    sums = total or len(kinds) > 1
    most = SUMS_ROOM // (4 * len(kinds) * r.count * r.queries) if sums else plan.blocks
    strips, parts = shares(plan.blocks, ceil(r.queries, cut.queries), r.count, most, programs(r, cut))
    own: dict[str, Any] = {"SUMS": sums, "SIZES": size or spread, "ENTROPY": spread, "ON": columns is not None}
    own |= {"RECEIVED": received, "RECEIVED_SIZE": received_size}
    if sums:
        own["sums"] = torch.zeros(len(kinds), r.count, strips, r.queries, device=device)
    if columns is not None:
        own |= {"chosen": columns.float().contiguous(), "chosen_n": 0 if columns.shape[0] == 1 else r.keys}
    by_key = [name for name, flag in (("received", received), ("received_size", received_size)) if flag]
    for name in by_key:
        own[name] = torch.empty(r.count, parts, r.keys, device=device)
    if cells is not None:
        own |= cell_arguments(r, cells, cut, plan)
        own["cells"] = torch.zeros(r.count, *cells, dtype=torch.int32, device=device).view(torch.uint32)
    launch_walk(
        r,
        state,
        cut,
        plan,
        (strips, r.count, parts),
        products,
        **own,
    )
    results: dict[str, Tensor] = {}
    if sums:
        row = dict(zip(kinds, own["sums"].sum(2).unbind(0), strict=True))
        if spread:
            row["spread"] = _entropy(row["size"], row["logs"])
        by_row = {"total": total, "size": size, "spread": spread, "on": columns is not None}
        results |= {name: row[name] for name, flag in by_row.items() if flag}
    for name in by_key:
        results[name] = own[name].sum(1)
    if cells is not None:
        results["map"] = number_of_code(own["cells"])
    return results


def _entropy(size: Float[Tensor, "n q"], logs: Float[Tensor, "n q"]) -> Float[Tensor, "n q"]:
    """log S − Σ_j |C_ij| log |C_ij| / S with S = Σ_j |C_ij|, from logarithms of base 2; 0 where S is."""
    entropy = (size.log2() - logs / size) * math.log(2)
    return entropy.clamp_min_(0).masked_fill_(size == 0, 0)


def number_of_code(code: Int[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The −x of `map_code(x)` in whole_matrix_statistics_triton; 0 for what no number was joined with."""
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


@dataclass(frozen=True, slots=True)
class CellPlan:
    """Positions pooled to cells: cell r of R covers ⌊rT/R⌋ ≤ t < ⌊(r+1)T/R⌋ of T."""

    cells: Int[Tensor, " t"]
    """The cell of each position. A table, because 64-bit division is slow on a GPU."""
    group: int
    """How many positions are pooled at once: a power of two, of which no cell has fewer."""
    splits: bool
    """Whether some group meets two cells."""

    @staticmethod
    @lru_cache(maxsize=32)
    def of(length: int, cells: int, device: torch.device) -> CellPlan:
        group = min(GROUP, 1 << ((length // cells).bit_length() - 1))
        table = (((torch.arange(length) + 1) * cells - 1) // length).int().to(device)
        return CellPlan(table, group, length % cells != 0 or (length // cells) % group != 0)


def launch_walk(
    r: MatrixRegion,
    state: Float[Tensor, "n q"],
    cut: Sizes,
    plan: KeyBlocks,
    grid: tuple[int, int, int],
    products: ValueProducts | None = None,
    **own: Any,
) -> None:
    """One walk over the matrix: `grid` has strips of keys, matrices, and parts of the queries."""
    from . import statistics_triton

    edges, ranges = ranges_of(r, plan, cut.queries)
    options = dict.fromkeys(_QUESTIONS, False) | dict.fromkeys(_OUTPUTS, state) | cut.options()
    options |= {"chosen_n": 0, "map_rows": 1, "map_cols": 1, "ROW_GROUP": 1, "COL_GROUP": 1, "BN": plan.width}
    options |= r.arguments() | r.precision() | (no_products(r) if products is None else products.arguments()) | own
    options["PRODUCT_PRECISION"] = options["PRECISION"]
    options |= {
        "state": state,
        "edges": edges,
        "ranges": ranges,
        "blocks": plan.blocks,
        "turns": ceil(plan.blocks, grid[0]),
    }
    options |= {"range_n": 0 if ranges.shape[0] == 1 else 4 * plan.blocks}
    options["SLABS"] = max(1, cut.queries // (16 * cut.warps))
    start_by_name(statistics_triton.walk, grid, options)


_QUESTIONS = ("ENTROPY", "ON", "SUMS", "SIZES", "RECEIVED", "RECEIVED_SIZE", "MAP", "SPLIT")
_OUTPUTS = (
    *("entropy", "on", "sums", "received", "received_size"),
    *("cells", "row_cells", "col_cells", "chosen"),
)


def cell_arguments(r: MatrixRegion, cells: tuple[int, int], cut: Sizes, plan: KeyBlocks) -> dict[str, Any]:
    """The arguments of a walk that pools the matrix to rows × cols cells by their maximum."""
    rows, cols = (CellPlan.of(length, n, r.a.device) for length, n in zip((r.queries, r.keys), cells, strict=True))
    own = {"map_rows": cells[0], "map_cols": cells[1], "row_cells": rows.cells, "col_cells": cols.cells}
    own |= {"ROW_GROUP": min(rows.group, cut.queries), "COL_GROUP": min(cols.group, plan.width // 4)}
    return own | {"MAP": True, "SPLIT": rows.splits or cols.splits}


def largest(r: MatrixRegion, state: Float[Tensor, "n q"], count: int, products: ValueProducts | None = None) -> Top:
    """The largest weights of every row, or contributions by size, `MOST` at most."""
    from . import statistics_triton

    shape, device, cut = (r.count, r.queries, count), r.a.device, sizes(r, "top")
    result = Top(torch.empty(shape, device=device), torch.empty(shape, dtype=torch.long, device=device))
    options = r.arguments() | r.precision() | (no_products(r) if products is None else products.arguments())
    options |= cut.options() | {"state": state, "count": count}
    options |= {"values": result.values, "indices": result.indices}
    options["SLOTS"] = max(2, 1 << (count - 1).bit_length())
    grid = (ceil(r.queries, cut.queries), r.count, 1)
    start_by_name(statistics_triton.top, grid, options)
    return result
