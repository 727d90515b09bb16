"""The tap of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from torch.overrides import has_torch_function_variadic

from ....attention import causal
from ....attention.torch_transforms import AUTOCAST
from .. import call_routing
from ..call_inputs_and_output import Record, dot_energies
from ..recording.call_log import UNKNOWN, entry_without_versions, keep_some_rows, leave_out_keys, relation_to_last
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..recording.call_log import LoggedCall
    from ..recording.captured_call import CapturedCall

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
_IS_TRACED = torch.compiler.is_dynamo_compiling
_GRAPH_TASK: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", None) or (lambda: -1)
_FLAGS: tuple[Callable[[], bool], ...] = tuple(
    getattr(torch._C, f"_get_{name}_sdp_enabled", None) or (lambda: True)
    for name in ("flash", "mem_efficient", "math", "cudnn")
)
"""Which kernels are allowed. With the tensors they decide which one is chosen."""


def _tapped(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    local, is_grad_enabled = call_routing.local, torch.is_grad_enabled
    is_autocast = _IS_AUTOCAST or torch.is_autocast_enabled
    flash, efficient, math, cudnn = _FLAGS
    choose = _CHOOSE if original is _BUILT_IN else None

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        # Every line here runs once for each call of a watched model, and is written for speed.
        own = local.state
        module, log = own.called, own.log
        if log is None or _IS_TRACED() or is_grad_enabled() or is_autocast() or _GRAPH_TASK() != -1 or query.is_nested:
            return _capture(original, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        once_k, once_v, state = key, value, None
        kernel: Any = None
        previous: LoggedCall | None = None
        if own.repeated:
            once_k, once_v = _once(own, key, value)
        last = log.last.get(module)
        if last is not None:
            previous = relation_to_last(last, query, once_k, once_v)
            if previous is UNKNOWN:
                own.repeated = [] if once_k is key else [(key, once_k), (value, once_v)]
                return _capture(original, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if (
            attn_mask is None
            and not dropout_p
            and query.is_cpu
            and choose is not None
            and not has_torch_function_variadic(query, key, value)
        ):
            try:
                kernel = choose(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
            except (RuntimeError, TypeError):  # the call itself will say what is wrong
                kernel = None
        if kernel == _FLASH:
            # The function that PyTorch calls here; called directly, it also returns the row state.
            out, state = _FLASH_ON_CPU(query, key, value, 0.0, is_causal, attn_mask=None, scale=scale)
        else:
            out = original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            kernel = flash(), efficient(), math(), cudnn()
        part = own.unheard
        details = is_causal, dropout_p, kernel, part, enable_gqa
        own.log = own.unheard = None
        try:
            try:
                entry = [
                    module, _record, query, once_k, once_v, out, None, attn_mask, state,
                    query._version, once_k._version, once_v._version, out._version,
                    None if attn_mask is None else attn_mask._version, (scale,), details, previous, None,
                ]  # fmt: skip
            except RuntimeError:  # an inference tensor has no version counter
                entry = entry_without_versions(
                    module, _record, query, once_k, once_v, out, attn_mask, state, (scale,), details, previous
                )
            if last is None:
                if out.nbytes > log.largest_output:
                    keep_some_rows(entry)
            else:
                log.hold_output(entry)
            if attn_mask is not None:
                log.mask_bytes += attn_mask.nbytes
            log.last[module] = entry
            log.entries.append(entry)
            if previous is not None:
                leave_out_keys(previous)
        except Exception as error:  # no memory for a copy: it must not stop the model
            call_routing.report_missed(call_routing.failure(error), part)
        return out

    return scaled_dot_product_attention


def _once(own: call_routing.ThreadState, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values before their heads were repeated for the kernel: they are kept once."""
    pairs, own.repeated = own.repeated, []
    if len(pairs) == 2 and pairs[0][0] is key and pairs[1][0] is value:
        return pairs[0][1], pairs[1][1]
    return key, value


def _capture(
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """A call that is not logged: by a module that is not known yet, with a graph for gradients, under an ablation."""
    own = call_routing.local.state
    interface_call = own.interface_call
    if own.log is not None:
        assert own.unheard is not None
        interface_call = call_routing.InterfaceCall(own.unheard, *_once(own, key, value))
        own.log = None
    if not call_routing.is_active():
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
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
    details = is_causal, dropout_p, kernel, module, enable_gqa
    call_routing.try_capture(_record, query, key, value, out, module, attn_mask, state, (), (scale,), details)
    if module is not None and own.interface_call is None:
        call_routing.learn(module)
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
    is_causal, dropout, kernel, module, enable_gqa = call.details
    assert call.settings is not None
    (scale,) = call.settings
    if isinstance(kernel, tuple):
        kernel = _chosen(call, kernel, enable_gqa)
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


def _chosen(call: CapturedCall, flags: tuple[bool, ...], enable_gqa: bool) -> int | None:
    """The kernel that PyTorch chose at the call; None where other kernels are allowed now."""
    if _CHOOSE is None or tuple([is_allowed() for is_allowed in _FLAGS]) != flags:
        return None
    q, k, v = call.q, call.k, call.v
    if not enable_gqa and q.shape[1] != k.shape[1]:  # heads were repeated, so that keys and values were contiguous
        k, v = (x.new_empty(x.shape[0], q.shape[1], *x.shape[2:]) for x in (k, v))
    is_causal, dropout = call.details[:2]
    (scale,) = call.settings or (None,)
    try:
        return _CHOOSE(q, k, v, call.mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa)
    except (RuntimeError, TypeError):
        return None


TAP = Tap(
    "scaled_dot_product_attention",
    lambda: [Replacement(F, "scaled_dot_product_attention", _tapped, is_active=None)],
)
