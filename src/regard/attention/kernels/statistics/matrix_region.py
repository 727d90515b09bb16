"""Part of an attention matrix as the Triton kernels take it: where its rows begin, which keys they see, how a weight
comes of a dot product. Nothing is copied that can be read in place.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from ...block_indices import positions, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...energies.lazy_energy_matrix import EnergyMatrix
    from ...normalizers.normalizer import Normalizer
    from ...weights.lazy_weight_matrix import WeightMatrix

KIND = {"softmax": 0, "proportional": 1, "threshold": 2, "hard": 3}  # as weight_functions_triton has them
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
    if normalize.kernel not in KIND:
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
    causal: bool
    """Whether later keys are seen by fewer queries."""
    kind: int
    power: float
    scale: float
    c: float
    unit: float
    """What the kernels take for energies, times this, are the energies: without modifiers they take dot products."""
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
            "KIND": self.kind,
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

    def bulk(self) -> bool:
        """Whether the copy engine (Hopper and later) can read the queries: whole rows, on multiples of 16 bytes."""
        width = self.a.shape[-1]
        return (
            self.a.is_cuda
            and _has_copy_engine(self.a.device)
            and self.a.dtype != torch.float32
            and self.align == 16
            and self.a.data_ptr() % 16 == 0
            and self.a.stride(-2) % 8 == 0
            and width >= 16
            and width & (width - 1) == 0
        )


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
    after = math.log2(math.e) / normalize.temperature if normalize.kernel == "softmax" else normalize.energy_scale
    unit = 1.0 if energies.modifiers else energies.form.scale
    c = _float32(after * unit)
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
        causal=energies.mask is not None and energies.mask.is_causal,
        kind=KIND[normalize.kernel or ""],
        power=normalize.power,
        scale=energies.form.scale,
        c=c,
        unit=unit,
        # c is rounded; scaling the state by the same rounded number makes the two cancel where a weight is large.
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


@cache
def _has_copy_engine(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9
