"""PyTorch's FlexAttention: dot products with any score modifier, skipping the blocks a mask closes."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from ..normalizers import mark_empty
from ..parts import digits, no_kernel, traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..energy_matrix import EnergyMatrix
    from ..normalizers import Normalizer
    from ..parts import Batch, Part

    _AnyPart = TypeVar("_AnyPart", bound=Part)


def refusal(energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float) -> str | None:
    if energies.form.kernel != "dot":
        return "the energy is not a dot product"
    if normalize.kernel != "softmax":
        return f"it has softmax only, not {type(normalize).__name__}"
    if dropout:
        return "it has no dropout"
    if not (energies.a.numel() and energies.b.numel() and v.numel() and energies.count):
        return "the batch is empty, or some other size is zero"
    if energies.a.device.type == "cpu" and _needs_gradient(energies, v):
        return "on CPU it has no backward; call it under torch.no_grad()"
    if energies.a.dtype == torch.float64 and energies.a.device.type != "cpu":
        return "its GPU kernels have no float64"
    return no_kernel()


def _needs_gradient(energies: EnergyMatrix, v: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in (energies.a, energies.b, v))


def run(
    energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float, weights: bool
) -> tuple[Tensor, Tensor | None]:
    batch, groups = energies.batch, energies.groups
    shared = batch if groups == 1 else (*batch[:-1], batch[-1] // groups)
    kind = v.dtype  # some energies project in higher precision than the inputs have
    q, k, v = (
        x.expand(*lead, *x.shape[-2:]).reshape(-1, lead[-1] if lead else 1, *x.shape[-2:])
        for x, lead in ((energies.a.to(kind), batch), (energies.b.to(kind), shared), (v, shared))
    )
    if not torch.is_grad_enabled():  # on CPU it refuses inputs that require a gradient even then
        q, k, v = q.detach(), k.detach(), v.detach()
    temperature = normalize.temperature
    # With modifiers the scale applies before them and the temperature after them, so they divide by it.
    scale = energies.form.scale if energies.modifiers else energies.form.scale / temperature
    out, aux = _kernel(q.device.type)(
        q,
        k,
        v,
        score_mod=_score_mod(energies, temperature) if energies.modifiers else None,
        block_mask=_block_mask(energies, q.device) if energies.mask is not None else None,
        scale=scale,
        enable_gqa=bool(groups > 1),
        return_aux=AuxRequest(lse=True),
    )
    out, lse = out.reshape(*batch, *out.shape[-2:]), aux.lse.reshape(*batch, energies.queries)
    if normalize.sink is not None:
        out, lse = _with_sink(out, lse, normalize.sink, temperature)
    # −∞ can also result from a bias, in a row that sees keys; then the state is computed from the energies.
    state = lse if any(x.kernel is None for x in energies.modifiers) else mark_empty(lse)
    # `Weights` keeps unrounded queries and keys; the state of rounded ones would not fit them.
    return out, state if energies.a.dtype == kind else None


def _with_sink(out: Tensor, lse: Tensor, sink: float | Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The sink takes exp(s) of exp(lse) + exp(s), and the keys keep the rest: out · exp(lse) / (exp(lse) + exp(s))."""
    s = torch.as_tensor(sink, dtype=lse.dtype, device=lse.device) / temperature
    s = s[..., None] if s.dim() else s  # [..., heads, 1]
    empty = lse == -torch.inf
    share = torch.sigmoid(lse.masked_fill(empty, 0) - s).masked_fill(empty, 0)
    return (out * share[..., None]).to(out.dtype), torch.logaddexp(lse, s)


@cache
def _kernel(device: str) -> Callable[..., Any]:
    # Without compilation it stores the matrix of energies. On a CPU, compiling needs a C++ compiler that users may not
    # have, and "auto" never selects this backend.
    if device == "cpu":
        return flex_attention
    return torch.compile(flex_attention)


def _indices(energies: EnergyMatrix, n: Tensor, h: Tensor) -> Batch:
    """Our leading indices from FlexAttention's two: all but the last leading dimension are flattened into n."""
    return (*digits(n, energies.batch[:-1]), h) if energies.batch else ()


def _with_views(part: _AnyPart, energies: EnergyMatrix) -> _AnyPart:
    """The same part with a view of each of its tensors, where the kernel is called without compilation.

    PyTorch 2.13 keeps one cache for all these calls. If a tensor occurs twice in a call, it looks up the functions of
    earlier calls in this one, and fails where they differ. So no tensor occurs twice.
    """
    return part if traced() or energies.a.device.type != "cpu" else part.map_tensors(lambda x: x.view_as(x))


def _score_mod(energies: EnergyMatrix, temperature: float) -> Callable[..., Tensor]:
    # The kernel is traced, and cannot copy from the CPU.
    modifiers = [_with_views(x.to_device(energies.a.device), energies) for x in energies.modifiers]

    def score_mod(e: Tensor, n: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for modifier in modifiers:
            e = modifier(e, _indices(energies, n, h), i, j)
        return e / temperature

    return score_mod


def _block_mask(energies: EnergyMatrix, device: torch.device) -> Any:
    assert energies.mask is not None
    given = getattr(energies.mask, "block_mask", None)
    if given is not None:
        return given
    mask = _with_views(energies.mask.to_device(device), energies)  # as in `_score_mod`

    def mask_mod(n: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask(_indices(energies, n, h), i, j)

    *lead, heads = energies.batch or (1,)
    return create_block_mask(mask_mod, math.prod(lead), heads, energies.queries, energies.keys, device=device)
