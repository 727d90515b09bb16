"""PyTorch's `scaled_dot_product_attention`: the fastest there is for softmax over dot products."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from .. import block_plan
from ..energies import DotForm
from ..normalizers import ONE_NUMBER, mark_empty
from ..parts import TensorVersions, exact, grid, no_kernel, readable, traced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ..block_plan import BlockPlan
    from ..energy_matrix import EnergyMatrix
    from ..masks import Mask
    from ..normalizers import Normalizer
    from ..parts import Index


def refusal(energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float) -> str | None:
    if energies.form.kernel != "dot" and not _is_near(energies, normalize, v):
        return "the energy is not a dot product"
    if normalize.kernel != "softmax":
        return f"it has softmax only, not {type(normalize).__name__}"
    if normalize.sink is not None:
        return "it has no sink"
    for modifier in energies.modifiers:
        if not modifier.additive:
            return f"it can add to the energies, but not apply {type(modifier).__name__}"
    return no_kernel()


def run(
    energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float, weights: bool
) -> tuple[Tensor, Tensor | None]:
    batch, groups = energies.batch, energies.groups
    if energies.form.kernel == "distance":
        return _with_a_column(energies, normalize, v, dropout, weights)
    if energies.mask is not None and not (dropout or energies.modifiers or traced()):
        plan = block_plan.plan(energies, range(energies.count), range(energies.queries))
        if plan is not None and plan.saves:
            done = _planned(plan, energies, v, energies.form.scale / normalize.temperature, weights)
            if done is not None:
                return done
    is_causal = energies.mask is not None and energies.mask.is_causal and not energies.modifiers
    # Some energies project in higher precision than the inputs have; the kernel wants one for all.
    own, kind = v.dtype, _kernel_dtype(energies, v)
    bias = None if is_causal else _bias(energies, normalize.temperature)
    if bias is not None and bias.dtype not in (torch.bool, kind) and bias.device.type != "cpu":
        bias = _narrow(bias, kind)  # on a CPU the bias may have more digits than the queries
    bias = None if bias is None else _four_mask(bias, batch)
    shared = batch if groups == 1 else (*batch[:-1], batch[-1] // groups)
    scale = energies.form.scale / normalize.temperature
    q, k, v = (x if x.dtype == kind else x.to(kind) for x in (energies.a, energies.b, v))
    q, k, v = _four(q, batch), _four(k, shared), _four(v, shared)
    state = None
    # The state of rounded queries and keys would not be that of the ones `Weights` keeps.
    wanted = weights and energies.a.dtype == kind
    kernel = _leaves_state(q, k, v, dropout, bias, is_causal) if wanted else None
    if kernel is not None:
        out, state = _with_state(kernel, q, k, v, bias, is_causal, scale)
        state = _mark_empty(state.reshape(*batch, energies.queries), energies)
    else:
        with exact(v.device):  # autocast would choose the dtype again
            out = scaled_dot_product_attention(
                q, k, v, bias, dropout, is_causal, scale=scale, enable_gqa=bool(groups > 1)
            )
    out = out if len(batch) == 2 else out.reshape(*batch, *out.shape[-2:])
    out = out if out.dtype == own else out.to(own)
    return out, state


def _is_near(energies: EnergyMatrix, normalize: Normalizer, v: Tensor) -> bool:
    """Whether energies −|a − b|² / 2 are products that lose no more than float32 does in a row state (`ONE_NUMBER`)."""
    a, b = energies.a, energies.b
    if normalize.kernel != "softmax" or energies.modifiers or energies.form.kernel != "distance" or not readable(a):
        return False
    if energies.form.inverse:  # type: ignore[attr-defined]
        return False
    if a.device.type != "cpu" or not a.dtype == b.dtype == v.dtype == torch.float32 or not (a.numel() and b.numel()):
        return False
    centre = b.mean(tuple(range(b.dim() - 1)))
    with torch.no_grad():
        most = ONE_NUMBER * min(1.0, normalize.temperature)  # energies are divided by it
        return all(float((x - centre).square().sum(-1).amax()) <= most for x in (a, b))


def _with_a_column(
    energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float, weights: bool
) -> tuple[Tensor, Tensor | None]:
    """−|a − b|² / 2 = [a, 1] · [b, −|b|² / 2] − |a|² / 2, of which the last term cancels in a softmax."""
    centre = energies.b.detach().mean(tuple(range(energies.b.dim() - 1)))
    a, b = energies.a - centre, energies.b - centre
    width, own = a.shape[-1] + 1, v.shape[-1]
    more = max(0, own - width)  # one width for all, as the kernel wants it
    columns = torch.cat([b, b.square().sum(-1, keepdim=True) * -0.5], -1)
    a, columns, v = pad(pad(a, (0, 1), value=1.0), (0, more)), pad(columns, (0, more)), pad(v, (0, width + more - own))
    products = replace(energies, a=a, b=columns, form=DotForm())
    out, state = run(products, normalize, v, dropout, weights)
    if state is not None:
        square = (energies.a.detach() - centre).square().sum(-1)
        state = state - square * (0.5 / normalize.temperature)
    return out[..., :own], state


def _planned(
    plan: BlockPlan, energies: EnergyMatrix, v: Tensor, scale: float, weights: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Calls on the blocks that the mask leaves; None where PyTorch would not take its blocked kernel for them."""
    batch, own, kind, mask = energies.batch, v.dtype, _kernel_dtype(energies, v), energies.mask
    assert mask is not None
    q, k, v = energies.a.to(kind), *(energies.per_query_head(x.to(kind)) for x in (energies.b, v))
    q, k, v = (_four(x, batch) for x in (q, k, v))
    if _leaves_state(q, k, v, 0.0, None, is_causal=False) != _FLASH:
        return None
    out, state = _Parts.apply(q, k, v, plan, mask, scale)
    out = out if len(batch) == 2 else out.reshape(*batch, *out.shape[-2:])
    state = state.reshape(*batch, energies.queries) if weights and energies.a.dtype == kind else None
    return out.to(own), state


class _Parts(torch.autograd.Function):
    """PyTorch's kernel on parts of q, k and v [N, H, T, D], with gradients added up in place."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: BlockPlan, mask: Mask, scale: float
    ) -> tuple[Tensor, Tensor]:
        n, heads, queries, _ = q.shape
        # Heads side by side, as the kernel returns them: a model puts them together without a copy.
        out = q.new_zeros(n, queries, heads, v.shape[-1]).transpose(1, 2)
        state = q.new_full((n, heads, queries), torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
        for at, rows, cols, bias, empty in _calls(plan, mask, q):
            z, lse = _flash(q[*at, rows], k[*at, cols], v[*at, cols], 0.0, False, attn_mask=bias, scale=scale)
            out[*at, rows], state[*at, rows] = z, lse
            if empty is not None:
                state[*at, rows].masked_fill_(empty, torch.inf)
        ctx.save_for_backward(q, k, v, out, state)
        ctx.plan, ctx.mask, ctx.scale = plan, mask, scale
        ctx.versions = TensorVersions([*mask.tensors(), *mask.function_tensors()])
        ctx.mark_non_differentiable(state)
        return out, state

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, state = ctx.saved_tensors
        ctx.versions.require_unchanged("so its gradient cannot be computed; change a copy of the mask")
        sums = torch.promote_types(k.dtype, torch.float32)
        into_q = torch.zeros_like(q)
        into_k, into_v = (torch.zeros_like(x, dtype=sums) for x in (k, v))
        for at, rows, cols, bias, empty in _calls(ctx.plan, ctx.mask, q):
            some = slope[*at, rows], q[*at, rows], k[*at, cols], v[*at, cols], out[*at, rows]
            lse = state[*at, rows].contiguous()
            if empty is not None:
                lse = lse.masked_fill(empty, 0)
            of_q, of_k, of_v = _flash_backward(*some, lse, 0.0, False, attn_mask=bias, scale=ctx.scale)
            into_q[*at, rows] = of_q
            into_k[*at, cols] += of_k
            into_v[*at, cols] += of_v
        return into_q, into_k.to(k.dtype), into_v.to(v.dtype), None, None, None


def _calls(
    plan: BlockPlan, mask: Mask, q: Tensor
) -> Iterator[tuple[tuple[slice, slice], slice, Index, Tensor | None, Tensor | None]]:
    """Per call which matrices [N, H], queries and keys, what is added to energies, and which queries see nothing."""
    heads, last, bias, empty = q.shape[1], None, None, None
    for n, rows, cols, hidden, _ in plan.cuts(mask):
        if hidden is not last:
            last, bias, empty = hidden, None, None
            if hidden is not None:
                bias = q.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[None, None]
                empty = nothing if bool((nothing := hidden.all(-1)).any()) else None
        first = n.start
        while first < n.stop:  # heads of one entry, or whole entries
            entry, head = divmod(first, heads)
            whole = (n.stop - first) // heads if not head else 0
            stop = first + whole * heads if whole else min(n.stop, (entry + 1) * heads)
            own = slice(0, heads) if whole else slice(head, head + stop - first)
            yield (slice(entry, entry + max(1, whole)), own), rows, cols, bias, empty
            first = stop


def _kernel_dtype(energies: EnergyMatrix, v: Tensor) -> torch.dtype:
    """The dtype of the values; float32 where a model is trained under autocast on a CPU.

    There the kernel's backward pass takes three times as long in half precision as in float32.
    """
    if v.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or v.dtype == torch.float64:
        return v.dtype
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (energies.a, energies.b, v))
    return torch.float32 if learns else v.dtype


def _narrow(bias: Tensor, kind: torch.dtype) -> Tensor:
    """What is finite stays finite: −1e9 is far below float16's range, and a row of −∞ would see nothing."""
    least = torch.finfo(kind).min
    return torch.where(bias == -torch.inf, bias, bias.clamp(least, -least)).to(kind)


def _bias(energies: EnergyMatrix, temperature: float) -> Tensor | None:
    """The mask as a boolean tensor, or mask and modifiers as one tensor of numbers to add; None for neither."""
    mask = None
    if energies.mask is not None:
        mask = energies.mask.dense(energies.batch, energies.queries, energies.keys, energies.a.device)
    if not energies.modifiers:
        return mask
    index = grid(energies.batch, energies.queries, energies.keys, energies.a.device)
    bias = torch.zeros((1, 1), dtype=energies.precision, device=energies.a.device)
    for modifier in energies.modifiers:
        bias = modifier.whole(bias, *index)
    if temperature != 1:
        # What is finite stays finite: a row of the least number there is would see nothing.
        least = torch.finfo(bias.dtype).min
        bias = torch.where(bias.isinf(), bias, (bias / temperature).clamp(least, -least))
    return bias if mask is None else bias.masked_fill(~mask, -torch.inf)


def _four(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """[N, H, T, D], the shape the fused kernels take, from any leading shape that broadcasts to `batch`."""
    if x.shape[:-2] != batch:
        x = x.expand(*batch, *x.shape[-2:])
    if len(batch) == 2:
        return x
    if len(batch) < 2:
        return x.unsqueeze(-3) if batch else x[None, None]
    return x.flatten(0, len(batch) - 2)


def _four_mask(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """The same for a mask or bias, left unexpanded where it can stay so: a padding mask is [N, 1, 1, T_k]."""
    x = x.reshape(*[1] * (len(batch) + 2 - x.dim()), *x.shape)
    if len(batch) > 2:
        lead = batch[:-1] if any(n > 1 for n in x.shape[:-3]) else (1,) * (len(batch) - 1)
        return x.expand(*lead, *x.shape[-3:]).flatten(0, len(lead) - 1)
    return x if len(batch) == 2 else x.unsqueeze(-3) if batch else x[None, None]


_FLASH, _EFFICIENT, _CUDNN = 1, 2, 3  # SDPBackend's numbers
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _leaves_state(q: Tensor, k: Tensor, v: Tensor, dropout: float, bias: Tensor | None, is_causal: bool) -> int | None:
    """The kernel PyTorch would choose, where it computes the log-sum-exp anyway and we can call it as PyTorch does."""
    choose = getattr(torch, "_fused_sdp_choice", None)  # private to PyTorch; without it the state is computed later
    if q.shape[1] != k.shape[1] or choose is None or traced():
        return None
    if not (q.numel() and k.numel() and v.numel()):
        return None  # the kernels divide by sizes; PyTorch does not call them then
    able: tuple[int, ...] = ()
    if q.device.type == "cpu" and (bias is None or not bias.requires_grad):
        able = (_FLASH,)
    # PyTorch pads odd widths itself before it calls a CUDA kernel; such calls are left to it.
    if q.device.type == "cuda" and bias is None and not dropout and q.shape[-1] % 8 == 0 == v.shape[-1] % 8:
        able = (_FLASH, _EFFICIENT, _CUDNN)
    if not able:
        return None
    choice = choose(q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=is_causal)
    return choice if choice in able else None


def _with_state(
    kernel: int, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    aten = torch.ops.aten
    if q.device.type == "cuda":
        if kernel == _FLASH:
            out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scale)
        elif kernel == _CUDNN:
            out, lse, *_ = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal, scale=scale)
        else:
            out, lse, *_ = aten._scaled_dot_product_efficient_attention(
                q, k, v, None, True, 0.0, is_causal, scale=scale
            )
            lse = lse[..., : q.shape[-2]]  # padded to a multiple of 32
        return out, lse
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill_(~bias, -torch.inf)
    return _flash(q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale)  # type: ignore[no-any-return]


def _mark_empty(state: Tensor, energies: EnergyMatrix) -> Tensor:
    """+∞ for rows that see no key, where the kernel leaves something else, and for no others."""
    state = mark_empty(state)
    if energies.mask is None or energies.mask.is_causal:
        return state  # every query sees the first key
    mask = energies.mask.dense(energies.batch, energies.queries, energies.keys, state.device)
    return state.masked_fill(~mask.any(dim=-1), torch.inf)
