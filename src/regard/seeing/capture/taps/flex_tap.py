"""The tap of torch.nn.attention.flex_attention. A compiled call is seen only through Hugging Face's interface."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.nn.attention import flex_attention as flex

from ....attention import mask_mod
from ....attention.energies.modifiers import ScoreMod
from .. import call_routing
from ..call_inputs_and_output import Record, dot_energies
from ..output_gradients import GraphOutput
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


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
        energies = dot_energies(query, key, scale, masks=() if block_mask is None else (mask_mod(block_mask.mask_mod),))
        if score_mod is not None:
            energies = replace(energies, modifiers=(ScoreMod(score_mod),))
        return Record(energies, value.detach(), out.detach(), "flex_attention")

    call_routing.try_report(make, output=GraphOutput(out))
    return result


TAP = Tap("flex_attention", lambda: [Replacement(flex, "flex_attention", _flex_attention)])
