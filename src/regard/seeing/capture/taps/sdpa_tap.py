"""The tap of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ....attention import causal
from ....attention.torch_transforms import AUTOCAST
from .. import call_routing
from ..call_inputs_and_output import Record, dot_energies
from ..output_gradients import GraphOutput
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cuDNN"}
_FLASH = 1


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
    if query.is_nested:
        call_routing.report_missed("nested tensors in scaled_dot_product_attention; watch with padded ones")
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    device = query.device.type
    if device in AUTOCAST and torch.is_autocast_enabled(device):
        # Cast as autocast would, so that what is recorded is what the kernel gets.
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (x.to(dtype) if x.dtype == torch.float32 else x for x in (query, key, value))
    interface_call = call_routing.thread_state.interface_call
    # Inside an interface, the tap of the interface ablates.
    ablations = call_routing.ablations_of(None) if interface_call is None else []
    for ablation, name in ablations:
        attn_mask, is_causal = ablation.mask(name, attn_mask, is_causal, query, key)
    options: dict[str, Any] = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
    options |= {"scale": scale, "enable_gqa": enable_gqa}
    kernel, state = _kernel(query, key, value, options), None
    if kernel == _FLASH and query.device.type == "cpu" and attn_mask is None and not dropout_p:
        # The function that PyTorch calls here; called directly, it also returns the row state.
        out, state = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
        )
    else:
        with call_routing.suspend_reports():  # on meta tensors it calls softmax in Python
            out = original(query, key, value, **options)
    if interface_call is not None:
        interface_call.reported = True
        # Key/value heads that were repeated for the kernel are kept once.
        if interface_call.key.shape[-2] == key.shape[-2] and interface_call.key.shape[-3] != key.shape[-3]:
            key, value = interface_call.key, interface_call.value

    def make() -> Record:
        return Record(
            dot_energies(query, key, scale, masks=(causal() if is_causal else None, attn_mask)),
            value.detach(),
            out.detach(),
            f"sdpa, {KERNELS[kernel]}" if kernel in KERNELS else "sdpa",
            state=None if state is None else state.detach(),
            dropout=dropout_p,
            cross=None if interface_call is None else interface_call.cross,
        )

    module = None if interface_call is None else interface_call.module
    call_routing.try_report(make, module, output=GraphOutput(out))
    for ablation, name in ablations:
        out = ablation.output(name, out, dim=-3)
    return out  # type: ignore[no-any-return]


def _kernel(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> int | None:
    """The kernel PyTorch chooses for this call, by a private function of PyTorch; None if that is not available."""
    choose = getattr(torch, "_fused_sdp_choice", None)
    if choose is None or q.dim() != 4:
        return None
    try:
        return int(choose(q, k, v, **options))
    except (RuntimeError, TypeError):
        return None


TAP = Tap(
    "scaled_dot_product_attention",
    lambda: [Replacement(F, "scaled_dot_product_attention", _scaled_dot_product_attention)],
)
