"""Hugging Face Transformers' attention interface: sdpa, eager, flash and flex, whatever a model's configuration names.

`AttentionInterface.get_interface` gives each layer its function, which is called as (module, q, k, v, mask, …) and
returns [B, T_q, heads, D]. Where that ends in scaled_dot_product_attention, the call is recorded there, with the mask
and the flags the kernel really got; else from what the interface was given.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .. import dispatch
from ..call import BUDGET, Call
from ..record import Record, causal_window, dot_energies, placed
from .flex_tap import MaskMod
from .softmax_tap import written_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from ....attention.energy_matrix import EnergyMatrix
    from ...analysis.ablation import Change

understood_here: set[tuple[Any, ...]] = set()
"""Modules whose eager weights were compared with ours and were the same. A new watch begins anew."""


def places() -> Iterator[tuple[tuple[Any, str], Callable[..., Any]]]:
    modeling = sys.modules.get("transformers.modeling_utils")  # a model of theirs has imported it
    interface = getattr(modeling, "AttentionInterface", None)
    if interface is not None and hasattr(interface, "get_interface"):
        yield (interface, "get_interface"), get_interface


def get_interface(original: Callable[..., Any], self: Any, implementation: str, default: Callable[..., Any]) -> Any:
    function = original(self, implementation, default)
    return functools.partial(through, function, implementation or "eager")


def through(
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
    different = dispatch.changed(module)
    if different:
        attention_mask = _closed(attention_mask, different, implementation, module, query, key, kwargs)
    outer, before = dispatch.Outer(module, key, value), dispatch.here.outer
    dispatch.here.outer = outer
    try:
        result = function(module, query, key, value, attention_mask, *args, **kwargs)
    finally:
        dispatch.here.outer = before
    if not outer.inner:
        dispatch.attempt(
            lambda: understood(function, implementation, outer, query, attention_mask, result, kwargs), module
        )
    for change, name in different:
        result = (change.output(name, result[0], dim=2), *result[1:])
    return result


def _closed(
    mask: Any,
    different: list[tuple[Change, str]],
    implementation: str,
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    options: dict[str, Any],
) -> Any:
    """The mask with ablated tokens closed, in the form this implementation takes."""
    if not any(change.tokens for change, _ in different):
        return mask
    if implementation not in ("sdpa", "eager"):
        raise ValueError(f"tokens can be ablated under sdpa and eager attention; the model runs {implementation}")
    flag = options.get("is_causal")
    flag = getattr(module, "is_causal", True) if flag is None else flag
    flag = implementation == "sdpa" and mask is None and q.shape[-2] > 1 and bool(flag)
    for change, name in different:
        mask, flag = change.mask(name, mask, flag, q, k)
    if implementation == "eager" and isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, torch.finfo(q.dtype).min)
    return mask


def understood(
    function: Callable[..., Any],
    implementation: str,
    outer: dispatch.Outer,
    query: Tensor,
    mask: Any,
    result: Any,
    options: dict[str, Any],
) -> Record:
    module, key, value = outer.module, outer.key, outer.value
    out, weights = result[0], result[1] if len(result) > 1 else None
    sinks = options.get("s_aux", getattr(module, "sinks", None))
    record = Record(
        _energies(implementation, module, query, key, mask, options),
        value.detach(),
        out.detach().transpose(1, 2).view(*query.shape[:-1], value.shape[-1]),
        implementation,
        sinks=None if sinks is None else sinks.detach().flatten(),
        dropout=float(options.get("dropout", 0.0)) if module.training else 0.0,
        cross=outer.cross,
    )
    if outer.weights is not None and (weights is None or outer.weights.shape == weights.shape):
        weights = outer.weights  # before dropout, which what is returned has behind it
    elif record.dropout:
        weights = None  # nothing to compare with
    if implementation == "eager" and weights is not None and not _agrees(function, module, options, record, weights):
        if outer.weights is None or weights is not outer.weights:
            raise ValueError(f"the weights of {type(module).__name__} are not a softmax over q·k that we know")
        own, groups = written_out(weights, "eager, its own way"), record.energies.groups
        v = record.v if groups == 1 else record.v.repeat_interleave(groups, dim=-3)
        return replace(own, v=v, out=record.out, dropout=record.dropout, cross=record.cross)
    return record


def _energies(
    implementation: str, module: nn.Module, q: Tensor, k: Tensor, mask: Any, options: dict[str, Any]
) -> EnergyMatrix:
    scale, softcap = options.get("scaling"), options.get("softcap")
    bias = options.get("position_bias")
    if implementation == "flex_attention" and hasattr(mask, "mask_mod"):
        mask = MaskMod(mask.mask_mod)
    if "flash" not in implementation:
        if isinstance(mask, torch.Tensor):
            mask = mask[..., : k.shape[-2]]
        return dot_energies(q, k, scale, masks=(bias, mask), softcap=softcap)
    # Flash kernels take the padding [B, T_k] and flags. A window is symmetric, cut by causality; it is left away where
    # it is wider than the text.
    flag = options.get("is_causal")
    flag = getattr(module, "is_causal", True) if flag is None else flag
    size = options.get("sliding_window")
    rule = causal_window(q.shape[-2], k.shape[-2], bool(flag), size if size and size < k.shape[-2] else None)
    real = None if mask is None else mask[:, None, None, -k.shape[-2] :].bool()
    return dot_energies(q, k, scale, masks=(bias, rule, real), softcap=softcap or None)


def _agrees(
    function: Callable[..., Any], module: nn.Module, options: dict[str, Any], record: Record, weights: Tensor
) -> bool:
    """Whether what we understood gives the weights that the eager function used: looked at once for each module."""
    kind = (id(module), function, *sorted(name for name, x in options.items() if x is not None))
    if kind in understood_here:
        return True
    with torch.no_grad():
        ours = Call("", placed(record, torch.Tensor.detach)).weights
        rows = sorted({0, weights.shape[-2] // 2, weights.shape[-2] - 1})
        theirs = weights[..., rows, :].float()
        # Of each row its own share: among many keys every weight is small.
        far = (ours.tile(rows, slice(None)) - theirs).norm(dim=-1) / theirs.norm(dim=-1)
        same = bool((far <= BUDGET[weights.dtype]).all())
    if same:
        understood_here.add(kind)
    return same
