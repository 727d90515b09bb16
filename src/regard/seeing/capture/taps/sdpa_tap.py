"""torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ....attention import causal
from ....attention.torch_transforms import AUTOCAST
from .. import dispatch
from ..record import Record, dot_energies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cuDNN"}
_FLASH = 1


def places() -> Iterator[tuple[tuple[Any, str], Callable[..., Any]]]:
    yield (F, "scaled_dot_product_attention"), tapped


def tapped(
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
        dispatch.missed("nested tensors in scaled_dot_product_attention; watch with padded ones")
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    place = query.device.type
    if place in AUTOCAST and torch.is_autocast_enabled(place):
        # As autocast would: what is kept is what the kernel gets.
        kind = torch.get_autocast_dtype(place)
        query, key, value = (x.to(kind) if x.dtype == torch.float32 else x for x in (query, key, value))
    outer = dispatch.here.outer
    # Inside an interface, what is to be different is done there.
    different = dispatch.changed(None) if outer is None else []
    for change, name in different:
        attn_mask, is_causal = change.mask(name, attn_mask, is_causal, query, key)
    kernel, state = _kernel(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa), None
    if kernel == _FLASH and query.device.type == "cpu" and attn_mask is None and not dropout_p:
        # What PyTorch calls itself at this point; asked directly, the kernel also hands over the row state.
        out, state = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
        )
    else:
        with dispatch.quietly():  # on meta tensors it is made of a softmax, in Python
            out = original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if outer is not None:
        outer.inner = True
        # Key/value heads that were repeated for the kernel are kept once.
        if outer.key.shape[-2] == key.shape[-2] and outer.key.shape[-3] != key.shape[-3]:
            key, value = outer.key, outer.value

    def make() -> Record:
        return Record(
            dot_energies(query, key, scale, masks=(causal() if is_causal else None, attn_mask)),
            value.detach(),
            out.detach(),
            f"sdpa, {KERNELS[kernel]}" if kernel in KERNELS else "sdpa",
            state=None if state is None else state.detach(),
            dropout=dropout_p,
            cross=None if outer is None else outer.cross,
        )

    dispatch.attempt(make, None if outer is None else outer.module)
    for change, name in different:
        out = change.output(name, out, dim=-3)
    return out  # type: ignore[no-any-return]


def _kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    gqa: bool,
) -> int | None:
    """The kernel PyTorch chooses for this call; how it is asked is PyTorch's own business, so it may not be known."""
    choose = getattr(torch, "_fused_sdp_choice", None)
    if choose is None or q.dim() != 4:
        return None
    try:
        return int(choose(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale, enable_gqa=gqa))
    except (RuntimeError, TypeError):
        return None
