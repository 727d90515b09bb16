"""The row state of a `Weights` as the Triton kernels take it, and computed by them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...normalizers.normalizer import RowState
from .. import ceil
from ..fast_triton_launch import start_by_name
from .block_sizes import sizes
from .matrix_region import KIND, MatrixRegion, matrix_region

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ...weights.lazy_weight_matrix import WeightMatrix

LOG2E = math.log2(math.e)


class KernelRowState(NamedTuple):
    """One number per row, multiplied as the kernels multiply energies; with an anchor, rows of large energies too.

    The anchor is the largest energy as the kernels themselves compute it: energies of PyTorch's matrix product are
    rounded otherwise, and the difference may be large where energies are.
    """

    rest: Float[Tensor, "n q"]
    anchor: Float[Tensor, "n q"] | None = None

    def arguments(self) -> dict[str, Any]:
        anchored = self.anchor is not None
        return {"state": self.rest, "anchor": self.anchor if anchored else self.rest, "ANCHORED": anchored}


def kernel_row_state(w: WeightMatrix, r: MatrixRegion) -> KernelRowState:
    """The row state for kernels that read weights of this region."""
    state = w.row_state()
    if state.anchor is None:
        return KernelRowState(_prepared(r, state.rest))
    every_key = matrix_region(w, w.queries)
    assert every_key is not None  # as for the region
    own = _largest_and_sums(every_key)
    if r.kind == KIND["threshold"]:
        own = RowState(state.rest, own.anchor)
    elif r.kind == KIND["softmax"]:
        own = _with_sink(w, own._replace(rest=own.rest / LOG2E), r.unit)
        own = own._replace(rest=own.rest * LOG2E)
    else:
        own = RowState(_inverse(own.rest), own.anchor)
    return KernelRowState(*(x.float().contiguous() for x in own if x is not None))


def _prepared(r: MatrixRegion, state: Float[Tensor, "n q"]) -> Tensor:
    """One number per row: times `ratio`, inverted for proportional, whole for hard."""
    if r.kind == KIND["softmax"]:
        # c is rounded; scaling the state by the same rounded number makes the two cancel where a weight is large.
        return (state.double() * r.ratio).float().contiguous()
    if r.kind == KIND["proportional"]:
        return _inverse(state).float().contiguous()
    return state.to(torch.int32 if r.kind == KIND["hard"] else torch.float32).contiguous()


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0, 1 / x)


def row_state(w: WeightMatrix) -> RowState | None:
    """The state of the chosen rows by one pass over the keys, where one number per row is enough.

    None where it is not, or the kernels do not apply: PyTorch's energies need a state of their own then.
    """
    if w.normalize.kernel not in ("softmax", "proportional"):
        return None
    r = matrix_region(w, w.queries)
    if r is None:
        return None
    own = _largest_and_sums(r)
    assert own.anchor is not None
    rest = own.rest / LOG2E if r.kind == KIND["softmax"] else own.rest
    one = w.normalize.joined(_with_sink(w, RowState(rest, own.anchor * r.unit)))
    return one if one.anchor is None else None


def _with_sink(w: WeightMatrix, state: RowState, unit: float = 1.0) -> RowState:
    """A softmax's state with the share of the sink, from that of its keys; the energy of an anchor is anchor · unit."""
    if w.sinks is None:
        return state
    assert state.anchor is not None
    sinks, per_energy = w.sinks[:, None], 1 / w.normalize.temperature
    anchor = torch.maximum(state.anchor, sinks / unit)
    keys = state.rest + (state.anchor - anchor) * (unit * per_energy)
    # The rest of an empty row is +∞, and stays so: the sink gives no weight to any key.
    return RowState(torch.logaddexp(keys, (sinks - anchor * unit) * per_energy), anchor)


def _largest_and_sums(r: MatrixRegion) -> RowState:
    from . import row_state_tile_triton

    anchor, rest = torch.empty(2, r.count, r.queries, device=r.a.device)
    cut = sizes(r, "state")
    options = r.arguments() | r.precision() | cut.options() | {"anchor": anchor, "rest": rest}
    start_by_name(row_state_tile_triton.row_state, (ceil(r.queries, cut.queries), r.count, 1), options)
    return RowState(rest, anchor)
