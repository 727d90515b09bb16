"""The taps of functions that compute attention as one: PyTorch's, Hugging Face's, regard's and yours.

Hugging Face: `AttentionInterface.get_interface` returns the function of a layer, which is called as (module, q, k, v,
mask, …) and returns [B, T_q, heads, D]. If it calls scaled_dot_product_attention, that tap records the call, with the
mask and flags of the kernel; otherwise the call is made from the arguments of the interface.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex
from torch.overrides import has_torch_function_variadic

from ..attention.attend import check, listeners, notify
from ..attention.energies import ScaledDot
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import causal, documents, mask_mod, window
from ..attention.modifiers import ScoreMod
from ..attention.normalizers import Normalizer, Softmax, Unchanged
from ..attention.parts import AUTOCAST
from .call import Call, dot_energies
from .fidelity import BUDGET
from .watch import (
    Replacement,
    Tap,
    ablations_of,
    is_active,
    local,
    opened,
    report,
    report_missed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Bool, Float

    from ..attention.attend import AnyEnergy, AnyNormalizer
    from ..attention.masks import Mask, MaskFunction
    from .interventions import ModelIntervention
    from .watch import Parts

ORIGINS = {0: "sdpa, math", 1: "sdpa, flash", 2: "sdpa, efficient", 3: "sdpa, cuDNN"}
_FLASH = 1
_CHOOSE: Callable[..., int] | None = getattr(torch, "_fused_sdp_choice", None)
"""The kernel that PyTorch chooses for a call, by a private function of PyTorch."""
_IS_AUTOCAST: Callable[[], bool] | None = getattr(torch._C, "_is_any_autocast_enabled", None)
"""Whether autocast is on for some device: private to PyTorch, and faster than to ask for one device."""
_NAME = "_scaled_dot_product_flash_attention_for_cpu"
_FLASH_ON_CPU: Callable[..., tuple[Tensor, Tensor]] = getattr(torch, _NAME, None) or getattr(torch.ops.aten, _NAME)


_BUILT_IN: Callable[..., Tensor] = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own function. Where other code has put one of its own in its place, that one is called, and no kernel."""


def _scaled_dot_product_attention(
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    own = local.state
    interface_call = own.interface_call
    if query.is_nested:
        report_missed("nested tensors in scaled_dot_product_attention; watch with padded ones")
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if _IS_AUTOCAST is None or _IS_AUTOCAST():
        query, key, value = _autocast(query, key, value)
    # Inside an interface, the tap of the interface ablates.
    ablations = ablations_of() if opened.ablations and interface_call is None else ()
    for ablation, name in ablations:
        attn_mask, is_causal = ablation.mask(name, attn_mask, is_causal, query, key)
    kernel, state = None, None
    if _CHOOSE is not None and query.dim() == 4:
        try:
            kernel = _CHOOSE(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        except (RuntimeError, TypeError):  # the call itself will say what is wrong
            kernel = None
    frozen = None if own.frozen is None else own.frozen()
    if frozen is not None and frozen.shape == (*query.shape[:-1], value.shape[-1]) and not dropout_p:
        out = torch.empty_like(frozen)  # `prove` puts back what was recorded
    elif (
        kernel == _FLASH
        and attn_mask is None
        and not dropout_p
        and query.is_cpu
        and original is _BUILT_IN
        and not has_torch_function_variadic(query, key, value)  # a subclass or a mode may give another result
    ):
        out, state = _FLASH_ON_CPU(query, key, value, 0.0, is_causal, attn_mask=None, scale=scale)
    else:
        own.suspended = True  # on meta tensors it calls softmax in Python
        try:
            out = original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        finally:
            own.suspended = False
        if attn_mask is None and out.grad_fn is not None:
            state = saved_state(out)
    module = None
    if interface_call is not None:
        interface_call.reported, module = True, interface_call.module
        # Key/value heads that were repeated for the kernel are kept once.
        if key is not interface_call.key and _are_repeated(key, interface_call.key):
            key, value = interface_call.key, interface_call.value
    report(
        lambda: Call(
            out,
            energies=functools.partial(_energies, scale, is_causal, module),
            q=query,
            k=key,
            v=value,
            mask=attn_mask,
            state=state,
            settings=("sdpa", scale),
            origin=ORIGINS.get(-1 if kernel is None else kernel, "sdpa"),
            dropout=dropout_p,
        ),
        module,
        output=out,
    )
    for ablation, name in ablations:
        ablation.check_head_axis(name, out)
        out = ablation.output(name, out, dim=-3)
    return out


def _are_repeated(key: Tensor, once: Tensor) -> bool:
    """Whether each head of `once` is there several times."""
    return once.shape[-2] == key.shape[-2] and once.shape[-3] != key.shape[-3]


def saved_state(out: Tensor) -> Tensor | None:
    """The row state that a fused kernel left for its backward pass, log Σ_j exp(e_ij) [*batch, T_q]; None without one.

    Not read where hooks keep such tensors elsewhere: reading one could run the forward pass again (checkpointing).
    """
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if hooks is None or hooks(True) is not None or not hasattr(out.grad_fn, "_saved_logsumexp"):
        return None
    state: Tensor = out.grad_fn._saved_logsumexp.detach()  # type: ignore[union-attr]
    if state.dim() == out.dim():  # cuDNN's: [B, H, T, 1]
        state = state.squeeze(-1)
    state = state[..., : out.shape[-2]]  # the memory-efficient kernel pads to a multiple of 32
    return state if state.shape == out.shape[:-1] else None


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as autocast does, so that what is recorded is what the kernel gets."""
    device = tensors[0].device.type
    if device not in AUTOCAST or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.dtype == torch.float32 else x for x in tensors)


def _energies(scale: float | None, is_causal: bool, module: nn.Module | None, call: Call) -> EnergyMatrix:
    assert call.q is not None
    call.cross = None if module is None else _is_cross(module)
    return dot_energies(call.q, call.k, scale, masks=(causal() if is_causal else None, call.mask))


SDPA_TAP = Tap(
    "scaled_dot_product_attention",
    [Replacement(F, "scaled_dot_product_attention", _scaled_dot_product_attention)],
)


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

    closes = None if block_mask is None else block_mask.mask_mod

    def energies(call: Call) -> EnergyMatrix:
        assert call.q is not None
        made = dot_energies(call.q, call.k, scale, masks=() if closes is None else (mask_mod(closes),))
        return made if score_mod is None else replace(made, modifiers=(ScoreMod(score_mod),))

    report(lambda: Call(out, energies=energies, q=query, k=key, v=value, origin="flex_attention"), output=out)
    ablations = ablations_of() if local.state.interface_call is None else []
    for ablation, name in ablations:
        lengths_differ = 1 < query.shape[-2] != key.shape[-2]
        ablation.check_maskless(name, "a call of flex_attention", lengths_differ)
        ablation.check_head_axis(name, out)
        out = ablation.output(name, out, dim=-3)
    return (out, *result[1:]) if isinstance(result, tuple) else out


FLEX_TAP = Tap("flex_attention", [Replacement(flex, "flex_attention", _flex_attention)])


_SCALED_DOT, _SOFTMAX = ScaledDot(), Softmax()


def _report(
    energies: EnergyMatrix,
    normalize: Normalizer,
    v: Tensor,
    out: Tensor,
    state: Tensor | None,
    dropout: float,
    replaceable: bool,
) -> Tensor:
    """A listener of `attend`: reports what it computed, and changes it where an intervention asks for that."""
    if not is_active():
        return out
    report(
        lambda: Call(
            out,
            energies=energies,
            v=v,
            state=state,
            normalize=normalize,
            origin="regard.attend",
            dropout=dropout,
        ),
        output=out,
        is_note=not replaceable,
    )
    for ablation, name in ablations_of():
        ablation.check_maskless(name, "a call of regard.attend or regard.note", 1 < energies.queries != energies.keys)
        if replaceable:
            ablation.check_head_axis(name, out)
            out = ablation.output(name, out, dim=-3)
    return out


def note(
    q: Float[Tensor, "*batch q d_q"],
    k: Float[Tensor, "*batch k d_k"],
    v: Float[Tensor, "*batch k d_v"],
    out: Float[Tensor, "*batch q d_v"],
    *,
    energy: AnyEnergy = _SCALED_DOT,
    normalize: AnyNormalizer = _SOFTMAX,
    mask: Mask | Bool[Tensor, "..."] | MaskFunction | None = None,
    dropout: float = 0.0,
) -> None:
    """Report an attention computed by your own code, so that `watch` can see it.

        out = my_kernel(q, k, v)
        regard.note(q, k, v, out, mask=causal())

    The arguments are those of `attend`. It costs nothing while no watch is open. `ablate` and `effects` cannot change
    `out`, with which your code goes on: to them this is no attention that could be changed.
    """
    if opened.watches or opened.ablations:
        energies, normalize, v, _ = check(q, k, v, energy, normalize, mask, dropout)
        notify(energies, normalize, v, out, None, dropout, replaceable=False)


ATTEND_TAP = Tap(
    "regard.attend",
    on_install=lambda: listeners.append(_report),
    on_remove=lambda: listeners.remove(_report) if _report in listeners else None,
)


@dataclass(slots=True)
class InterfaceCall:
    """A call of Hugging Face's attention interface that has not returned yet."""

    module: nn.Module
    key: Tensor
    value: Tensor
    reported: bool = False
    """Whether a tap inside the interface has reported the call."""
    weights: Tensor | None = None
    """The output of a softmax inside the interface: weights before dropout."""


verified: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], bool]] = WeakKeyDictionary()
"""Modules whose eager weights were equal to ours, by their function and options: whether scores are rounded to the type
of the queries. It is how the call is made; the proof compares its weights with the output, in every watch anew."""
PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "position_ids")
"""The arguments that say where sequences in one row begin, which flash kernels keep apart."""
OPTIONS = ("scaling", "softcap", "position_bias", "sliding_window", "is_causal", "s_aux", *PACKED)
"""The arguments that decide the weights."""
HALF = (torch.float16, torch.bfloat16)


def _interface_of(parts: Parts) -> Iterator[Replacement]:
    modeling = sys.modules.get("transformers.modeling_utils")  # imported if there is a Transformers model
    interface = getattr(modeling, "AttentionInterface", None)
    if interface is not None and hasattr(interface, "get_interface"):
        yield Replacement(interface, "get_interface", _get_interface)


def _get_interface(original: Callable[..., Any], self: Any, attn_implementation: str, default: Any) -> Any:
    function = original(self, attn_implementation, default)
    return functools.partial(_attention, function, attn_implementation or "eager")


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
    ablations = ablations_of(module) if opened.ablations else []
    if ablations:
        attention_mask = _ablated_mask(attention_mask, ablations, implementation, module, query, key, kwargs)
    state = local.state
    waiting = state.softmaxes
    if waiting:  # this is the attention of the module; a softmax of its own before, without a product, is not used
        waiting[:] = [softmax for softmax in waiting if softmax.pieces or softmax.module is not module]
    interface = InterfaceCall(module, key, value)
    known = verified.get(module)
    options = _options(kwargs) if known else {}
    rounded = known.get((function, *options)) if known else None
    outer, suspended = state.interface_call, state.suspended
    if rounded is None:
        state.interface_call = interface
    else:  # nothing inside needs to be seen
        state.suspended = True
    try:
        result = function(module, query, key, value, attention_mask, *args, **kwargs)
    finally:
        state.interface_call, state.suspended = outer, suspended
    if not interface.reported:
        options = options or _options(kwargs)
        dropout = float(kwargs.get("dropout", 0.0)) if module.training else 0.0

        def call(rounded: bool) -> Call:
            return _call(implementation, interface, query, attention_mask, result[0], options, dropout, rounded)

        def make() -> Call:
            if rounded is not None:
                return call(rounded)
            known = function, implementation, query.dtype, options, dropout
            return _compared(call, interface, result[0], result[1] if len(result) > 1 else None, *known)

        report(make, module, output=result[0], arrange=_transposed)
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
    if not any(ablation.masks for ablation, _ in ablations):
        return mask
    if implementation not in ("sdpa", "eager"):
        raise ValueError(f"tokens can be ablated under sdpa and eager attention; the model runs {implementation}")
    flag = implementation == "sdpa" and mask is None and q.shape[-2] > 1 and _is_causal(module, options)
    for ablation, name in ablations:
        mask, flag = ablation.mask(name, mask, flag, q, k)
    if implementation == "eager" and isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, torch.finfo(q.dtype).min)
    return mask


def _compared(
    call: Callable[[bool], Call],
    interface: InterfaceCall,
    out: Tensor,
    returned: Tensor | None,
    function: Callable[..., Any],
    implementation: str,
    dtype: torch.dtype,
    options: dict[str, Any],
    dropout: float,
) -> Call:
    """The call by the arguments of the interface; its weights are compared with those of the model, if there are any.

    Those of a softmax inside the interface are before dropout, those returned after it.
    """
    module, before = interface.module, interface.weights
    if before is not None and returned is not None and before.shape != returned.shape:
        before = None
    w = before if before is not None or dropout else returned
    if implementation != "eager" or w is None:  # nothing to compare with
        return call(False)
    # In half precision eager attention rounds its scores, and its weights are those of rounded scores.
    for rounded in (True, False) if dtype in HALF else (False,):
        if _agrees(call(rounded), w):
            verified.setdefault(module, {})[(function, *options)] = rounded
            return call(rounded)
    # A sink may be applied to the output, after a softmax without it: the output decides.
    if _sinks(module, options) is not None and call(False).fidelity().faithful:
        return call(False)
    if w is not before:
        raise ValueError(f"the weights of {type(module).__name__} are not the softmax of its queries and keys")
    groups, v = call(False).own.groups, interface.value
    return Call(
        out.transpose(1, 2),
        energies=EnergyMatrix.of_matrix(w.detach()),
        v=v if groups == 1 else v.repeat_interleave(groups, dim=-3),
        normalize=Unchanged(),
        origin="eager, its own way",
        dropout=dropout,
        cross=_is_cross(module),
        matrix="they are not the softmax of its queries and keys",
    )


def _call(
    implementation: str,
    interface: InterfaceCall,
    query: Tensor,
    mask: Any,
    out: Tensor,
    options: dict[str, Any],
    dropout: float,
    rounded: bool,
) -> Call:
    """A call by the arguments of the interface."""
    module = interface.module
    bias, sinks = options.get("position_bias"), _sinks(module, options)
    tensor, other = (mask, None) if isinstance(mask, torch.Tensor) else (None, mask)

    def energies(call: Call) -> EnergyMatrix:
        assert call.q is not None
        if sinks is not None:
            call.normalize = Softmax(sink=sinks.detach().flatten())
        call.cross = _is_cross(module)
        own_mask = other if call.mask is None else call.mask
        return _energies_of_interface(implementation, module, call.q, call.k, own_mask, options, rounded)

    return Call(
        out.transpose(1, 2),
        energies=energies,
        q=query,
        k=interface.key,
        v=interface.value,
        mask=tensor,
        learned=[x for x in (bias, sinks, *(options.get(name) for name in PACKED)) if x is not None],
        settings=None
        if bias is not None
        else (implementation, options.get("scaling"), options.get("softcap"), rounded),
        origin=implementation,
        dropout=dropout,
    )


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in OPTIONS if name in arguments and arguments[name] is not None}


def _transposed(x: Tensor) -> Tensor:
    """The interface returns [B, T_q, heads, D]."""
    return x.transpose(1, 2)


def _sinks(module: nn.Module, options: dict[str, Any]) -> Tensor | None:
    sinks: Tensor | None = options.get("s_aux", getattr(module, "sinks", None))
    return sinks


def _energies_of_interface(
    implementation: str,
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    mask: Any,
    options: dict[str, Any],
    rounded: bool,
) -> EnergyMatrix:
    scale, softcap = options.get("scaling"), options.get("softcap")
    bias = options.get("position_bias")
    if implementation == "flex_attention" and hasattr(mask, "mask_mod"):
        mask = mask_mod(mask.mask_mod)
    if "flash" not in implementation:
        if isinstance(mask, torch.Tensor):
            mask = mask[..., : k.shape[-2]]
        return dot_energies(q, k, scale, masks=(bias, mask), softcap=softcap, rounded=rounded)
    # Flash kernels take the padding [B, T_k] and flags: the last query sees the last key. A window is symmetric, cut by
    # causality; it is left out if it is wider than the text.
    offset, size = k.shape[-2] - q.shape[-2], options.get("sliding_window")
    near = window(size, offset=offset) if size and size < k.shape[-2] else None
    rule = causal(offset) if _is_causal(module, options) else None
    padding = None if mask is None else mask[:, None, None, -k.shape[-2] :].bool()
    apart = None if mask is not None else _packed(options, q, k)
    return dot_energies(q, k, scale, masks=(bias, rule, near, padding, apart), softcap=softcap or None)


def _packed(options: dict[str, Any], q: Tensor, k: Tensor) -> Mask | None:
    """The mask that keeps sequences apart which lie one after the other in a row; None if it is one sequence.

    Where they begin is said by `cu_seq_lens`, or by positions that begin again (padding-free training).
    """
    queries, keys, positions = (options.get(name) for name in PACKED)
    if queries is not None and keys is not None:
        if q.shape[-2] != k.shape[-2] or not torch.equal(queries, keys):
            raise ValueError("packed sequences with other queries than keys are not known; watch them one by one")
        place = torch.arange(q.shape[0] * q.shape[-2], device=q.device).view(q.shape[0], -1)
        return documents(torch.bucketize(place, queries[1:].to(q.device), right=True))
    if positions is None or q.shape[0] != 1 or positions.shape[-1] == 1 or positions.shape[-1] != k.shape[-2]:
        return None
    starts = (positions.reshape(1, -1) == 0).cumsum(-1)
    return documents(starts) if bool((starts[:, -1] > starts[:, 0]).any()) else None


def _is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    flag = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if flag is None else flag)


def _is_cross(module: nn.Module) -> bool | None:
    """Whether a module computes cross-attention, if it says so; causal attention is not."""
    declared = getattr(module, "is_cross_attention", None)
    return False if declared is None and getattr(module, "is_causal", False) else declared


@torch.no_grad()
def _agrees(call: Call, weights: Tensor) -> bool:
    """Whether the call has the weights that the eager function used."""
    rows = sorted({0, weights.shape[-2] // 2, weights.shape[-2] - 1})
    theirs = weights[..., rows, :].float()
    # Relative to each row: with many keys every weight is small. A row that a sink takes whole is zero in both.
    error = (call.weights.tile(rows, slice(None)) - theirs).norm(dim=-1)
    return bool((error <= BUDGET[weights.dtype] * theirs.norm(dim=-1)).all())


HUGGINGFACE_TAP = Tap("a Hugging Face attention", of_model=_interface_of)


def all_taps() -> tuple[Tap, ...]:
    """Every tap, in the order in which they are put in place."""
    from . import taps_recomputed, taps_written

    return (
        SDPA_TAP,
        taps_recomputed.MULTIHEAD_TAP,
        FLEX_TAP,
        ATTEND_TAP,
        HUGGINGFACE_TAP,
        taps_written.TAP,
        taps_recomputed.LINEAR_TAP,
    )
