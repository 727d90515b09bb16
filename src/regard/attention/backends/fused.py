"""Ours: what PyTorch has no kernel for. The additive op where it applies, blocks of the formula everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..forms import TanhForm
from ..kernels.additive import attention
from ..masks import Padding, interval
from ..normalizers import Softmax
from ..scores import TRITON
from . import blocked

if TYPE_CHECKING:
    from torch import Tensor

    from ..masks import Interval
    from ..request import Request
    from ..scores import Scores


def refusal(request: Request) -> str | None:
    return None


def how(request: Request) -> str:
    why_not, _ = _op(request)
    if why_not is None:
        return "the additive kernel, in O(T) memory"
    return "the formula in blocks of rows, in O(T) memory" + (f" ({why_not})" if why_not else "")


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    why_not, bounds = _op(request)
    return _additive(request, bounds) if why_not is None else blocked.run(request)


def _op(request: Request) -> tuple[str | None, Interval | None]:
    """Why the additive op does not apply: None if it does, "" where nobody would expect it to; and its intervals."""
    scores = request.scores
    why_not = _refused(request)
    bounds = None
    if why_not is None and scores.mask is not None:
        bounds = _interval(scores)
        if bounds is None:
            why_not = "the additive kernel takes masks that are one interval of keys per query"
    return why_not, bounds


def _refused(request: Request) -> str | None:
    scores = request.scores
    if not isinstance(scores.form, TanhForm):
        return ""
    device = scores.a.device.type
    if device not in ("cpu", "cuda"):
        return f"the additive kernel runs on CPU and CUDA, not {device}"
    if device == "cuda" and not TRITON:
        return "the additive kernel needs Triton on CUDA"
    if device == "cuda" and scores.precision == torch.float64:
        return "the additive kernel on CUDA computes in float32"
    if not isinstance(request.normalize, Softmax):
        return f"the additive kernel has softmax only, not {type(request.normalize).__name__}"
    if scores.modifiers:
        return "the additive kernel has no score modifiers"
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
    # Drawn from PyTorch's generator, so that torch.manual_seed decides the dropout here as everywhere.
    seed = torch.randint(2**62, (), device=v.device) if request.dropout else None
    out, lse = attention(
        scores.a,
        scores.b,
        scores.form.weight,
        v,
        start,
        stop,
        seed,
        1 / normalize.temperature,
        request.dropout,
    )
    return out.reshape(*scores.batch, *out.shape[1:]), lse.reshape(*scores.batch, scores.queries)
