"""The tap of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F
from torch.overrides import has_torch_function_variadic

from ....attention import causal
from ....attention.torch_transforms import AUTOCAST
from .. import call_routing
from ..call_inputs_and_output import Record, dot_energies
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ...recorder import CapturedCall

KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cuDNN"}
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
    own = call_routing.local.state
    interface_call = own.interface_call
    if query.is_nested:
        call_routing.report_missed("nested tensors in scaled_dot_product_attention; watch with padded ones")
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if _IS_AUTOCAST is None or _IS_AUTOCAST():
        query, key, value = _autocast(query, key, value)
    # Inside an interface, the tap of the interface ablates.
    ablations = call_routing.ablations_of(None) if call_routing.ablations and interface_call is None else ()
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
    details = is_causal, dropout_p, kernel, module
    call_routing.try_capture(_record, query, key, value, out, module, attn_mask, state, (), (scale,), details)
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


def _record(call: CapturedCall) -> Record:
    is_causal, dropout, kernel, module = call.details
    assert call.settings is not None
    (scale,) = call.settings
    return Record(
        dot_energies(call.q, call.k, scale, masks=(causal() if is_causal else None, call.mask)),
        call.v,
        call.out,
        f"sdpa, {KERNELS[kernel]}" if kernel in KERNELS else "sdpa",
        state=call.state,
        dropout=dropout,
        cross=None if module is None else call_routing.is_cross(module),
        rows=call.rows,
    )


TAP = Tap(
    "scaled_dot_product_attention",
    lambda: [Replacement(F, "scaled_dot_product_attention", _scaled_dot_product_attention)],
)
