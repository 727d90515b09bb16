"""The tap of Hugging Face Transformers' attention interface: sdpa, eager, flash and flex.

`AttentionInterface.get_interface` returns the function of a layer, which is called as (module, q, k, v, mask, …) and
returns [B, T_q, heads, D]. If it calls scaled_dot_product_attention, that tap records the call, with the mask and flags
of the kernel; otherwise the record is made from the arguments of the interface.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import mask_mod
from ..attention.normalizers import Softmax, Unchanged
from . import routing
from .call import BUDGET, Call
from .generation import causal_window, dot_energies
from .routing import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from .interventions import ModelIntervention


class EagerFormula(NamedTuple):
    """The formula by which our weights were equal to those of a module's eager attention."""

    rounded: bool
    """Whether scores are rounded to the type of the queries."""
    has_sinks: bool


verified: dict[tuple[Any, ...], EagerFormula] = {}
"""The formulas of modules whose eager weights were compared with ours. Cleared when a watch opens."""
OPTIONS = ("scaling", "softcap", "position_bias", "sliding_window", "is_causal", "s_aux")
"""The arguments that decide the weights."""
HALF = (torch.float16, torch.bfloat16)


def _replacements() -> Iterator[Replacement]:
    modeling = sys.modules.get("transformers.modeling_utils")  # imported if there is a Transformers model
    interface = getattr(modeling, "AttentionInterface", None)
    if interface is not None and hasattr(interface, "get_interface"):
        yield Replacement(interface, "get_interface", _tapped_get_interface, is_active=None)


def _tapped_get_interface(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Any:
        function = original(self, attn_implementation, default)
        if not routing.is_active():
            return function
        return functools.partial(_attention, function, attn_implementation or "eager")

    return get_interface


def _attention(
    function: Callable[..., Any],
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    ablations = routing.ablations_of(module) if routing.ablations else []
    if ablations:
        attention_mask = _ablated_mask(attention_mask, ablations, implementation, module, query, key, kwargs)
    state = routing.local.state
    waiting = state.softmaxes
    if waiting:  # this is the attention of the module; a softmax of its own before, without a product, is not used
        waiting[:] = [softmax for softmax in waiting if softmax.pieces or softmax.module is not module]
    options = _options(kwargs) if verified else {}
    formula = verified.get((id(module), function, *options)) if verified else None
    if formula is not None:  # nothing inside needs to be seen
        before, state.suspended = state.suspended, True
        try:
            result = function(module, query, key, value, attention_mask, *args, **kwargs)
        finally:
            state.suspended = before
        routing.report(
            lambda: _call(
                formula, implementation, module, query, key, value, attention_mask, result[0], options, kwargs
            ),
            module,
            output=result[0],
            arrange=_transposed,
        )
    else:
        interface_call, outer = routing.InterfaceCall(module, key, value), state.interface_call
        state.interface_call = interface_call
        try:
            result = function(module, query, key, value, attention_mask, *args, **kwargs)
        finally:
            state.interface_call = outer
        if not interface_call.reported:
            _report(function, implementation, interface_call, query, attention_mask, result, kwargs)
    for ablation, name in ablations:
        result = (ablation.output(name, result[0], dim=2), *result[1:])
    return result


def _ablated_mask(
    mask: Any,
    ablations: list[tuple[ModelIntervention, str]],
    implementation: str,
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    options: dict[str, Any],
) -> Any:
    """The mask without the ablated tokens, in the form this implementation takes."""
    if not any(ablation.tokens for ablation, _ in ablations):
        return mask
    if implementation not in ("sdpa", "eager"):
        raise ValueError(f"tokens can be ablated under sdpa and eager attention; the model runs {implementation}")
    flag = implementation == "sdpa" and mask is None and q.shape[-2] > 1 and _is_causal(module, options)
    for ablation, name in ablations:
        mask, flag = ablation.mask(name, mask, flag, q, k)
    if implementation == "eager" and isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, torch.finfo(q.dtype).min)
    return mask


def _report(
    function: Callable[..., Any],
    implementation: str,
    interface: routing.InterfaceCall,
    query: Tensor,
    mask: Any,
    result: Any,
    arguments: dict[str, Any],
) -> None:
    """Report a call that no tap inside the interface has seen, and verify its weights if it has some."""
    module, options = interface.module, _options(arguments)
    out, weights = result[0], result[1] if len(result) > 1 else None

    def make() -> Call:
        def own(rounded: bool = False) -> Call:
            formula = EagerFormula(rounded, _sinks(module, options) is not None)
            key, value = interface.key, interface.value
            return _call(formula, implementation, module, query, key, value, mask, out, options, arguments)

        before, w = interface.weights, None
        if before is not None and (weights is None or before.shape == weights.shape):
            w = before  # before dropout; those returned are after it
        else:
            w = None if _dropout(module, arguments) else weights
        if implementation != "eager" or w is None:  # nothing to compare with
            return own()
        # In half precision eager attention rounds its scores, and its weights are those of rounded scores.
        for rounded in (True, False) if query.dtype in HALF else (False,):
            if _agrees(own(rounded), w):
                formula = EagerFormula(rounded, _sinks(module, options) is not None)
                verified[(id(module), function, *options)] = formula
                return own(rounded)
        # A sink may be applied to the output, after a softmax without it: the output decides.
        if _sinks(module, options) is not None and own().fidelity().faithful:
            return own()
        if w is not before:
            raise ValueError(f"the weights of {type(module).__name__} are not the softmax of its queries and keys")
        groups, v = own().own.groups, interface.value
        return Call(
            out.transpose(1, 2),
            energies=EnergyMatrix.of_matrix(w.detach()),
            v=v if groups == 1 else v.repeat_interleave(groups, dim=-3),
            normalize=Unchanged(),
            origin="eager, its own way",
            dropout=_dropout(module, arguments),
            cross=routing.is_cross(module),
            matrix="they are not the softmax of its queries and keys",
        )

    routing.report(make, module, output=out, arrange=_transposed)


def _call(
    formula: EagerFormula,
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    out: Tensor,
    options: dict[str, Any],
    arguments: dict[str, Any],
) -> Call:
    """A call by the arguments of the interface, whose weights are those of a formula."""
    rounded, has_sinks = formula
    bias, sinks = options.get("position_bias"), _sinks(module, options) if has_sinks else None
    tensor, other = (mask, None) if isinstance(mask, torch.Tensor) else (None, mask)

    def energies(call: Call) -> EnergyMatrix:
        assert call.q is not None
        if sinks is not None:
            call.normalize = Softmax(sink=sinks.detach().flatten())
        call.cross = routing.is_cross(module)
        own_mask = other if call.mask is None else call.mask
        return _energies(implementation, module, call.q, call.k, own_mask, options, rounded)

    return Call(
        out.transpose(1, 2),
        energies=energies,
        q=query,
        k=key,
        v=value,
        mask=tensor,
        learned=[x for x in (bias, sinks) if x is not None],
        settings=None
        if bias is not None
        else (implementation, options.get("scaling"), options.get("softcap"), rounded),
        origin=implementation,
        dropout=_dropout(module, arguments),
    )


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in OPTIONS if name in arguments and arguments[name] is not None}


def _dropout(module: nn.Module, arguments: dict[str, Any]) -> float:
    return float(arguments.get("dropout", 0.0)) if module.training else 0.0


def _transposed(x: Tensor) -> Tensor:
    """The interface returns [B, T_q, heads, D]."""
    return x.transpose(1, 2)


def _sinks(module: nn.Module, options: dict[str, Any]) -> Tensor | None:
    sinks: Tensor | None = options.get("s_aux", getattr(module, "sinks", None))
    return sinks


def _energies(
    implementation: str,
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    mask: Any,
    options: dict[str, Any],
    rounded: bool = False,
) -> EnergyMatrix:
    scale, softcap = options.get("scaling"), options.get("softcap")
    bias = options.get("position_bias")
    if implementation == "flex_attention" and hasattr(mask, "mask_mod"):
        mask = mask_mod(mask.mask_mod)
    if "flash" not in implementation:
        if isinstance(mask, torch.Tensor):
            mask = mask[..., : k.shape[-2]]
        return dot_energies(q, k, scale, masks=(bias, mask), softcap=softcap, rounded=rounded)
    # Flash kernels take the padding [B, T_k] and flags. A window is symmetric, cut by causality; it is left out if it
    # is wider than the text.
    size = options.get("sliding_window")
    size = size if size and size < k.shape[-2] else None
    window = causal_window(q.shape[-2], k.shape[-2], _is_causal(module, options), size)
    padding = None if mask is None else mask[:, None, None, -k.shape[-2] :].bool()
    return dot_energies(q, k, scale, masks=(bias, window, padding), softcap=softcap or None)


def _is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    flag = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if flag is None else flag)


@torch.no_grad()
def _agrees(call: Call, weights: Tensor) -> bool:
    """Whether the call has the weights that the eager function used."""
    rows = sorted({0, weights.shape[-2] // 2, weights.shape[-2] - 1})
    theirs = weights[..., rows, :].float()
    # Relative to each row: with many keys every weight is small. A row that a sink takes whole is zero in both.
    error = (call.weights.tile(rows, slice(None)) - theirs).norm(dim=-1)
    return bool((error <= BUDGET[weights.dtype] * theirs.norm(dim=-1)).all())


TAP = Tap("a Hugging Face attention", _replacements, on_watch=verified.clear)
