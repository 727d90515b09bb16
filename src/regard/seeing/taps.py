"""The tap of torch.nn.functional.scaled_dot_product_attention.

The tap of attention modules as such: which of them ran without a call that another tap saw.

The classes are found by their names, and `forward` is replaced in the class. A hook on the module would turn off fast
paths of PyTorch.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex
from torch.overrides import has_torch_function_variadic

from ..attention.attend import check, listeners, notify
from ..attention.blocks import AUTOCAST
from ..attention.energies import ScaledDot
from ..attention.masks import causal, mask_mod
from ..attention.modifiers import ScoreMod
from ..attention.normalizers import Normalizer, Softmax
from . import routing
from .call import Call
from .generation import dot_energies
from .modules import ATTENTION, STATE_SPACE
from .routing import Replacement, Tap
from .taps_linear import continues, is_lightning, report_lightning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Bool, Float

    from ..attention.attend import AnyEnergy, AnyNormalizer
    from ..attention.energy_matrix import EnergyMatrix
    from ..attention.masks import Mask, MaskFunction
    from .modules import Parts

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
    own = routing.local.state
    interface_call = own.interface_call
    if query.is_nested:
        routing.report_missed("nested tensors in scaled_dot_product_attention; watch with padded ones")
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if _IS_AUTOCAST is None or _IS_AUTOCAST():
        query, key, value = _autocast(query, key, value)
    # Inside an interface, the tap of the interface ablates.
    ablations = routing.ablations_of(None) if routing.ablations and interface_call is None else ()
    for ablation, name in ablations:
        attn_mask, is_causal = ablation.mask(name, attn_mask, is_causal, query, key)
    kernel, state = None, None
    if _CHOOSE is not None and query.dim() == 4:
        try:
            kernel = _CHOOSE(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        except (RuntimeError, TypeError):  # the call itself will say what is wrong
            kernel = None
    if (
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
    routing.report(
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
    call.cross = None if module is None else routing.is_cross(module)
    return dot_energies(call.q, call.k, scale, masks=(causal() if is_causal else None, call.mask))


SDPA_TAP = Tap(
    "scaled_dot_product_attention",
    lambda: [Replacement(F, "scaled_dot_product_attention", _scaled_dot_product_attention)],
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

    routing.report(lambda: Call(out, energies=energies, q=query, k=key, v=value, origin="flex_attention"), output=out)
    ablations = routing.ablations_of(None) if routing.local.state.interface_call is None else []
    for ablation, name in ablations:
        lengths_differ = 1 < query.shape[-2] != key.shape[-2]
        ablation.check_maskless(name, "a call of flex_attention", lengths_differ)
        ablation.check_head_axis(name, out)
        out = ablation.output(name, out, dim=-3)
    return (out, *result[1:]) if isinstance(result, tuple) else out


FLEX_TAP = Tap("flex_attention", lambda: [Replacement(flex, "flex_attention", _flex_attention)])


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
    if not routing.is_active():
        return out
    routing.report(
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
    for ablation, name in routing.ablations_of(None):
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
    if routing.watches or routing.ablations:
        energies, normalize, v, _ = check(q, k, v, energy, normalize, mask, dropout)
        notify(energies, normalize, v, out, None, dropout, replaceable=False)


ATTEND_TAP = Tap(
    "regard.attend", on_install=lambda: listeners.append(_report), on_remove=lambda: listeners.remove(_report)
)


NOT_ATTENTION = re.compile(
    r"norm|mask|bias|drop|embed|output|mlp|feed.?forward|ffn|adapter|cache|position|router|rotary|project|pool|head$|"
    r"gate$|scale|conv\dd?|activation|model$|for[A-Z]\w+$"
)
"""Parts of an attention module, and models that contain some."""

NO_WEIGHTS = "a state-space or linear layer: no weights exist here"
NOT_SEEN = (
    "it ran without a softmax, scaled_dot_product_attention or other function that can be seen; report what it "
    "computes with regard.note(q, k, v, out)"
)


@functools.cache
def _is_attention(kind: type) -> bool:
    name = kind.__name__
    if kind.__module__.startswith(("torch.", "regard.")) or issubclass(kind, torch.jit.ScriptModule):
        return False  # these are seen by their functions
    if NOT_ATTENTION.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) or NOT_ATTENTION.search(name):
        return False
    return bool(ATTENTION.search(name) or STATE_SPACE.search(name))


def _replacements(parts: Parts) -> Iterator[Replacement]:
    """The classes of the attention modules that contain no other."""
    kinds: list[tuple[str, type]] = [(name, type(part)) for name, part in parts]
    modules = {name: kind for name, kind in kinds if _is_attention(kind)}
    outer = {name[:at] for name in modules for at, letter in enumerate(name) if letter == "."} | {""}
    chosen = {name: kind for name, kind in modules.items() if name not in outer or len(modules) == 1}
    classes: set[type] = set()
    for name, part in parts:
        kind = chosen.get(name)
        if kind is None:
            continue
        tapped = _tapped_lightning if is_lightning(part) else _tapped_forward
        if kind not in classes:
            classes.add(kind)
            yield Replacement(kind, "forward", tapped, is_active=None)
        if "forward" in vars(part):  # its own: hooks of accelerate's device_map keep the one before
            yield Replacement(part, "forward", functools.partial(_own_forward, tapped, part), is_active=None)


def _own_forward(
    tapped: Callable[[Callable[..., Any]], Callable[..., Any]], module: nn.Module, original: Callable[..., Any]
) -> Callable[..., Any]:
    return functools.partial(tapped(lambda _, *args, **kwargs: original(*args, **kwargs)), module)


def _tapped_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    local = routing.local

    def forward(*args: Any, **kwargs: Any) -> Any:
        # Every line here runs once for each call of a watched model, and is written for speed.
        own = local.state
        outer, own.unheard = own.unheard, args[0]
        try:
            result = original(*args, **kwargs)
        except BaseException:
            own.unheard = None
            raise
        if own.unheard is not None:
            _finish(own, own.unheard, outer)
        return result

    return forward


def _finish(own: routing.ThreadState, module: nn.Module, outer: nn.Module | None) -> None:
    """After a module of which no call was seen."""
    own.unheard = outer
    if routing.is_active():
        linear = STATE_SPACE.search(type(module).__name__) is not None
        routing.report_unseen(module, NO_WEIGHTS if linear else NOT_SEEN)


def _tapped_lightning(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not routing.is_active():
            return original(module, *args, **kwargs)
        own = routing.local.state
        outer, own.unheard = own.unheard, module
        continued = continues(module, kwargs)
        try:
            result = original(module, *args, **kwargs)
        except BaseException:
            own.unheard = None
            raise
        if own.unheard is not None:
            own.unheard = outer
            report_lightning(module, result, continued, *args, **kwargs)
        return result

    return forward


MODULE_TAP = Tap("", model_replacements=_replacements)
