"""Our kernels: the additive and distance ops where they apply, else the formula in blocks of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from .. import blocked_attention
from ..energies.energy_forms import TRITON
from ..kernels import KernelArguments
from ..kernels.additive import additive_op
from ..kernels.distance import distance_op
from ..torch_transforms import no_kernel, transformed

if TYPE_CHECKING:
    from torch import Tensor

    from ..energies.energy_forms import DistanceForm
    from ..energies.lazy_energy_matrix import EnergyMatrix
    from ..masks.mask import Interval
    from ..request import Request


def refusal(request: Request) -> str | None:
    return None


def how(request: Request) -> str:
    reason, _ = _op(request)
    if reason is None:
        return f"{_kernel(request.energies)}, in O(T) memory"
    return "the formula in blocks of rows, in O(T) memory" + (f" ({reason})" if reason else "")


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    reason, bounds = _op(request)
    if reason is not None:
        return blocked_attention.run(request)
    energies = request.energies.flat()
    v = energies.flatten(request.energies.per_query_head(request.v))
    # Drawn from PyTorch's generator, so that torch.manual_seed decides the dropout here as everywhere.
    seed = torch.randint(2**62, (), device=v.device) if request.dropout else None
    start, stop = bounds or (None, None)
    options = KernelArguments(start, stop, seed, 1 / request.normalize.temperature, request.dropout)
    form: Any = energies.form
    if form.kernel == "tanh":
        out, state = additive_op.attention(energies.a, energies.b, form.weight, v, options)
    else:
        out, state = distance_op.attention(energies.a, energies.b, v, options, form.inverse)
    if len(energies.batch) != 1:
        out, state = out.reshape(*energies.batch, *out.shape[1:]), state.reshape(*energies.batch, energies.queries)
    return blocked_attention.differentiable(request, out), state


def _kernel(energies: EnergyMatrix) -> str:
    return "the additive kernel" if energies.form.kernel == "tanh" else "the distance kernel"


def _op(request: Request) -> tuple[str | None, Interval | None]:
    """The reason why no op applies (None if one does, "" where none is written for the form), and the intervals."""
    energies = request.energies
    reason = _refused(request)
    bounds = None
    if reason is None and energies.mask is not None:
        bounds = energies.intervals()
        if bounds is None:
            reason = f"{_kernel(energies)} takes masks that are one interval of keys per query"
    return reason, bounds


def _refused(request: Request) -> str | None:
    energies, kernel = request.energies, _kernel(request.energies)
    device, normalize = energies.a.device.type, type(request.normalize).__name__
    if not (energies.a.numel() and energies.b.numel() and request.v.numel() and energies.count):
        return ""
    by_distance = energies.form.kernel == "distance"
    if energies.separate:
        return f"{kernel} would let NaN or ∞ behind the mask reach other queries"
    if energies.form.kernel not in ("tanh", "distance") or (by_distance and device == "cpu"):
        return ""
    if device not in ("cpu", "cuda"):
        return f"{kernel} runs on {'CUDA' if by_distance else 'CPU and CUDA'}, not {device}"
    if device == "cuda" and not TRITON:
        return f"{kernel} needs Triton on CUDA"
    if device == "cuda" and energies.precision == torch.float64:
        return f"{kernel} on CUDA computes in float32"
    if by_distance and cast("DistanceForm", energies.form).inverse:
        if request.normalize.kernel != "proportional":
            return f"{kernel} has proportional weights only for inverse distances, not {normalize}"
    elif request.normalize.kernel != "softmax":
        return f"{kernel} has softmax only, not {normalize}"
    if request.normalize.sink is not None:
        return f"{kernel} has no sink"
    if energies.modifiers:
        return f"{kernel} has no score modifiers"
    if by_distance and transformed():
        return f"{kernel} is not made for torch.func"
    reason = no_kernel(request.tensors)
    return None if reason is None else f"{kernel}: {reason}"
