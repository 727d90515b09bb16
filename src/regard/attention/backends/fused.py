"""Our kernels: the additive op where it applies, else the formula in blocks of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import blocked_attention
from ..energies.energy_forms import TRITON
from ..kernels import KernelArguments
from ..kernels.additive import additive_op
from ..torch_transforms import no_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from ..masks.mask import Interval
    from ..request import Request


def refusal(request: Request) -> str | None:
    return no_kernel()


def how(request: Request) -> str:
    reason, _ = _op(request)
    if reason is None:
        return "the additive kernel, in O(T) memory"
    return "the formula in blocks of rows, in O(T) memory" + (f" (the additive kernel {reason})" if reason else "")


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
    out, state = additive_op.attention(energies.a, energies.b, form.weight, v, options)
    if len(energies.batch) != 1:
        out, state = out.reshape(*energies.batch, *out.shape[1:]), state.reshape(*energies.batch, energies.queries)
    return out, state


def _op(request: Request) -> tuple[str | None, Interval | None]:
    """Why the op does not apply (None if it does, "" where there is none for the form), and the mask's intervals."""
    energies, normalize = request.energies, request.normalize
    device = energies.a.device.type
    if energies.form.kernel != "tanh":
        return "", None
    if not (energies.a.numel() and energies.b.numel() and request.v.numel() and energies.count):
        return "", None
    if device not in ("cpu", "cuda"):
        return f"runs on CPU and CUDA, not {device}", None
    if device == "cuda" and not TRITON:
        return "needs Triton on CUDA", None
    if device == "cuda" and energies.precision == torch.float64:
        return "computes in float32 on CUDA", None
    if normalize.kernel != "softmax":
        return f"has softmax only, not {type(normalize).__name__}", None
    if normalize.sink is not None:
        return "has no sink", None
    if energies.modifiers:
        return "has no score modifiers", None
    bounds = None if energies.mask is None else energies.intervals()
    if energies.mask is not None and bounds is None:
        return "takes masks that are one interval of keys per query", None
    return None, bounds
