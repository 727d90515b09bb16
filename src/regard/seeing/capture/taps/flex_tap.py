"""The tap of torch.nn.attention.flex_attention. A compiled call is seen only through Hugging Face's interface."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import flex_attention as flex

from ....attention import Mask, Modifier
from .. import call_routing
from ..call_inputs_and_output import Record, dot_energies
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ....attention.block_indices import Batch


def _flex_attention(
    original: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: flex.BlockMask | None = None,
    scale: float | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    result = original(query, key, value, score_mod, block_mask, scale, *args, **kwargs)
    out = result[0] if isinstance(result, tuple) else result

    def make() -> Record:
        energies = dot_energies(query, key, scale, masks=() if block_mask is None else (MaskMod(block_mask.mask_mod),))
        if score_mod is not None:
            energies = replace(energies, modifiers=(ScoreMod(score_mod),))
        return Record(energies, value.detach(), out.detach(), "flex_attention")

    call_routing.try_report(make)
    return result


class MaskMod(Mask):
    """FlexAttention's mask_mod(b, h, i, j), a function of single indices."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return _vectorize(self.function, batch, i, j)

    def __repr__(self) -> str:
        return f"MaskMod({getattr(self.function, '__name__', '…')})"


class ScoreMod(Modifier):
    """FlexAttention's score_mod(score, b, h, i, j)."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return _vectorize(self.function, batch, i, j, e).to(e.dtype)


def _vectorize(function: Callable[..., Tensor], batch: Batch, i: Tensor, j: Tensor, *first: Tensor) -> Tensor:
    """Evaluate a function of single indices at all of them. It may index tensors, so broadcasting is not enough."""
    b, h = batch[-2:]
    arguments = torch.broadcast_tensors(*first, b, h, i, j)
    result: Tensor = torch.vmap(function)(*(x.flatten() for x in arguments))
    return result.view(arguments[0].shape)


TAP = Tap("flex_attention", lambda: [Replacement(flex, "flex_attention", _flex_attention)])
