"""PyTorch's FlexAttention: dot products with any score modifier, skipping the blocks a mask closes."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from ..block_indices import digits
from ..energy_forms import DotForm
from ..normalizers.normalizer import Softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..block_indices import Batch
    from ..energy_matrix import Scores
    from ..request import Request


def refusal(request: Request) -> str | None:
    scores = request.scores
    if not isinstance(scores.form, DotForm):
        return "the energy is not a dot product"
    if not isinstance(request.normalize, Softmax):
        return f"it has softmax only, not {type(request.normalize).__name__}"
    if request.dropout:
        return "it has no dropout"
    if not scores.count:
        return "the batch is empty"
    if scores.a.device.type == "cpu" and request.wants_gradient:
        return "on CPU it has no backward; call it under torch.no_grad()"
    if scores.a.dtype == torch.float64 and scores.a.device.type != "cpu":
        return "its GPU kernels have no float64"
    return None


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    scores, normalize = request.scores, request.normalize
    assert isinstance(scores.form, DotForm)
    assert isinstance(normalize, Softmax)
    batch, groups = scores.batch, scores.groups
    shared = batch if groups == 1 else (*batch[:-1], batch[-1] // groups)
    kind = request.v.dtype  # some energies project in higher precision than the inputs have
    q, k, v = (
        x.expand(*lead, *x.shape[-2:]).reshape(-1, lead[-1] if lead else 1, *x.shape[-2:])
        for x, lead in ((scores.a.to(kind), batch), (scores.b.to(kind), shared), (request.v, shared))
    )
    temperature = normalize.temperature
    # With modifiers the scale applies before them and the temperature after, so it is theirs to divide by.
    scale = scores.form.scale if scores.modifiers else scores.form.scale / temperature
    out, aux = _kernel(q.device.type)(
        q,
        k,
        v,
        score_mod=_score_mod(scores, temperature) if scores.modifiers else None,
        block_mask=_block_mask(scores, q.device) if scores.mask is not None else None,
        scale=scale,
        enable_gqa=groups > 1,
        return_aux=AuxRequest(lse=True),
    )
    state = aux.lse.masked_fill(aux.lse == -torch.inf, torch.inf).reshape(*batch, scores.queries)
    # The state of rounded queries and keys would not be that of the ones `Weights` keeps.
    return out.reshape(*batch, *out.shape[-2:]), state if scores.a.dtype == kind else None


@cache
def _kernel(device: str) -> Callable[..., Any]:
    # Uncompiled it materialises the scores; compiling is what makes it a kernel. On CPU compiling needs a C++
    # compiler that users may not have, and "auto" never comes here.
    if device == "cpu":
        return flex_attention
    return torch.compile(flex_attention)


def _indices(scores: Scores, n: Tensor, h: Tensor) -> Batch:
    """Our leading indices from FlexAttention's two: all but the last leading dimension are flattened into n."""
    return (*digits(n, scores.batch[:-1]), h) if scores.batch else ()


def _score_mod(scores: Scores, temperature: float) -> Callable[..., Tensor]:
    def score_mod(e: Tensor, n: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for modifier in scores.modifiers:
            e = modifier(e, _indices(scores, n, h), i, j)
        return e / temperature

    return score_mod


def _block_mask(scores: Scores, device: torch.device) -> Any:
    mask = scores.mask
    assert mask is not None

    def mask_mod(n: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask(_indices(scores, n, h), i, j)

    *lead, heads = scores.batch or (1,)
    return create_block_mask(mask_mod, math.prod(lead), heads, scores.queries, scores.keys, device=device)
