"""Ours: what PyTorch has no kernel for. The additive and distance ops where they apply, else the formula in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..energy_forms import DistanceForm, TanhForm
from ..energy_matrix import TRITON
from ..kernels.additive import additive_op
from ..kernels.distance import distance_op
from ..masks import Padding, interval
from ..normalizers.normalizer import Proportional, Softmax
from ..torch_transforms import transformed
from . import blocked

if TYPE_CHECKING:
    from torch import Tensor

    from ..energy_matrix import Scores
    from ..masks import Interval
    from ..request import Request


def refusal(request: Request) -> str | None:
    return None


def how(request: Request) -> str:
    why_not, _ = _op(request)
    if why_not is None:
        return f"{_kernel(request.scores)}, in O(T) memory"
    return "the formula in blocks of rows, in O(T) memory" + (f" ({why_not})" if why_not else "")


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    why_not, bounds = _op(request)
    if why_not is not None:
        return blocked.run(request)
    return _additive(request, bounds) if isinstance(request.scores.form, TanhForm) else _distance(request, bounds)


def _kernel(scores: Scores) -> str:
    return "the additive kernel" if isinstance(scores.form, TanhForm) else "the distance kernel"


def _op(request: Request) -> tuple[str | None, Interval | None]:
    """Why no op applies: None if one does, "" where nobody would expect it to; and its intervals."""
    scores = request.scores
    why_not = _refused(request)
    bounds = None
    if why_not is None and scores.mask is not None:
        bounds = _interval(scores)
        if bounds is None:
            why_not = f"{_kernel(scores)} takes masks that are one interval of keys per query"
    return why_not, bounds


def _refused(request: Request) -> str | None:
    scores, kernel = request.scores, _kernel(request.scores)
    device, normalize = scores.a.device.type, type(request.normalize).__name__
    by_distance = isinstance(scores.form, DistanceForm)
    if not isinstance(scores.form, TanhForm | DistanceForm) or (by_distance and device == "cpu"):
        return ""
    if device not in ("cpu", "cuda"):
        return f"{kernel} runs on {'CUDA' if by_distance else 'CPU and CUDA'}, not {device}"
    if device == "cuda" and not TRITON:
        return f"{kernel} needs Triton on CUDA"
    if device == "cuda" and scores.precision == torch.float64:
        return f"{kernel} on CUDA computes in float32"
    if isinstance(scores.form, DistanceForm) and scores.form.inverse:
        if not isinstance(request.normalize, Proportional):
            return f"{kernel} has proportional weights only for inverse distances, not {normalize}"
    elif not isinstance(request.normalize, Softmax):
        return f"{kernel} has softmax only, not {normalize}"
    if scores.modifiers:
        return f"{kernel} has no score modifiers"
    if by_distance and transformed():
        return f"{kernel} is not made for torch.func"
    return None


def _interval(scores: Scores) -> Interval | None:
    mask, device = scores.mask, scores.a.device
    assert mask is not None
    if type(mask) is Padding and mask.lengths.shape == scores.batch:
        # A decoder asks this at every step, and index tensors would take longer than the attention itself.
        stop = mask.lengths.to(device).reshape(-1, 1).clamp(0, scores.keys)
        return torch.zeros_like(stop), stop
    return interval(
        mask, torch.arange(scores.count, device=device), torch.arange(scores.queries, device=device), scores
    )


def _additive(request: Request, bounds: Interval | None) -> tuple[Tensor, Tensor]:
    scores, normalize, v = request.scores.flat(), request.normalize, request.flat_values
    assert isinstance(scores.form, TanhForm)
    assert isinstance(normalize, Softmax)
    start, stop = bounds or (None, None)
    out, lse = additive_op.attention(
        scores.a,
        scores.b,
        scores.form.weight,
        v,
        start,
        stop,
        _seed(request),
        1 / normalize.temperature,
        request.dropout,
    )
    return out.reshape(*scores.batch, *out.shape[1:]), lse.reshape(*scores.batch, scores.queries)


def _distance(request: Request, bounds: Interval | None) -> tuple[Tensor, Tensor]:
    scores, v = request.scores.flat(), request.flat_values
    assert isinstance(scores.form, DistanceForm)
    start, stop = bounds or (None, None)
    scale = 1 / request.normalize.temperature if isinstance(request.normalize, Softmax) else 1.0
    out, state = distance_op.attention(
        scores.a,
        scores.b,
        v,
        start,
        stop,
        _seed(request),
        scale,
        scores.form.inverse,
        request.dropout,
    )
    return out.reshape(*scores.batch, *out.shape[1:]), state.reshape(*scores.batch, scores.queries)


def _seed(request: Request) -> Tensor | None:
    """Drawn from PyTorch's generator, so that torch.manual_seed decides the dropout here as everywhere."""
    return torch.randint(2**62, (), device=request.v.device) if request.dropout else None
