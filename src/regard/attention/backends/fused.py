"""Ours: what PyTorch has no kernel for. The additive op where it applies, blocks of the formula everywhere else."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from ..forms import TanhForm
from ..kernels.additive import TransformableAdditive, additive
from ..masks import interval
from ..normalizers import Softmax
from ..transforms import transformed
from . import blocked

if TYPE_CHECKING:
    from torch import Tensor

    from ..masks import Interval
    from ..request import Request
    from ..scores import Scores


TRITON = find_spec("triton") is not None  # found, not imported


def refusal(request: Request) -> str | None:
    return None


def how(request: Request) -> str:
    why_not = _not_the_op(request)
    if why_not is None:
        return "the additive kernel, in O(T) memory"
    return "the formula in blocks of rows, in O(T) memory" + (f" ({why_not})" if why_not else "")


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    return _additive(request) if _not_the_op(request) is None else blocked.run(request)


def _not_the_op(request: Request) -> str | None:
    """Why the additive op does not apply: None if it does, "" where nobody would expect it to."""
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
    if scores.mask is not None and _interval(scores) is None:
        return "the additive kernel takes masks that are one interval of keys per query"
    return None


def _interval(scores: Scores) -> Interval | None:
    assert scores.mask is not None
    device = scores.a.device
    return interval(
        scores.mask, torch.arange(scores.count, device=device), torch.arange(scores.queries, device=device), scores
    )


def _additive(request: Request) -> tuple[Tensor, Tensor]:
    scores, normalize, v = request.scores.flat(), request.normalize, request.flat_values
    assert isinstance(scores.form, TanhForm)
    assert isinstance(normalize, Softmax)
    start, stop = (None, None) if scores.mask is None else _interval(scores) or (None, None)
    # Drawn from PyTorch's generator, so that torch.manual_seed decides the dropout here as everywhere.
    seed = torch.randint(2**62, (), device=v.device) if request.dropout else None
    op = TransformableAdditive.apply if transformed() else additive
    out, lse = op(
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
