"""The tap of torch.nn.attention.flex_attention. A compiled call is seen only through Hugging Face's interface."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.nn.attention import flex_attention as flex

from ....attention import mask_mod
from ....attention.energies.modifiers import ScoreMod
from .. import call_routing
from ..call_inputs_and_output import Record, dot_energies
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ...recorder import CapturedCall


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

    details = scale, None if block_mask is None else block_mask.mask_mod, score_mod
    call_routing.try_capture(_record, query, key, value, out, details=details)
    ablations = call_routing.ablations_of(None) if call_routing.local.state.interface_call is None else []
    for ablation, name in ablations:
        lengths_differ = 1 < query.shape[-2] != key.shape[-2]
        ablation.check_maskless(name, "a call of flex_attention", lengths_differ)
        ablation.check_head_axis(name, out)
        out = ablation.output(name, out, dim=-3)
    return (out, *result[1:]) if isinstance(result, tuple) else out


def _record(call: CapturedCall) -> Record:
    scale, closes, score_mod = call.details
    energies = dot_energies(call.q, call.k, scale, masks=() if closes is None else (mask_mod(closes),))
    if score_mod is not None:
        energies = replace(energies, modifiers=(ScoreMod(score_mod),))
    return Record(energies, call.v, call.out, "flex_attention", rows=call.rows)


TAP = Tap("flex_attention", lambda: [Replacement(flex, "flex_attention", _flex_attention)])
