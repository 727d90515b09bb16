"""The tap of linear attention: functions of queries, keys, decays and values that are linear in the values.

Their output is W·v, where W depends on everything but the values. Two ways lead to W:

- Delta rules and state-space duals have no shorter form. W is what the same function returns for unit values
  (v = identity), computed when it is asked for; until then the arguments are kept, which takes O(T).
- Of RWKV's average the energies are known: k_j less a decay for each token between, normalised by a softmax.

A call that continues from a state has weights on earlier tokens, which are gone; it is reported as missed.

Lightning attention in MiniMax's form: a module whose parts say what it computes.

w_ij = q_i·k_j exp(−m_h (i − j)) for j ≤ i (Qin et al. 2024, "Lightning Attention-2"; MiniMax-01 2025). The module runs
blocks of it, without a function that could be replaced. So queries, keys and values are computed again from its input
when they are asked for, and fidelity is measured on the output of the module.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..attention.energies import DotForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import causal
from ..attention.modifiers import Modifier
from ..attention.normalizers import Unchanged, Unnormalized
from .call import Call, dot_energies
from .storage import format_bytes
from .watch import Tap, ablations_of, report, report_missed, suspend_reports

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from ..attention.blocks import Batch

ORIGINS = {
    "torch_chunk_gated_delta_rule": "gated delta rule",
    "torch_recurrent_gated_delta_rule": "gated delta rule",
    "chunk_gated_delta_rule": "gated delta rule",
    "fused_recurrent_gated_delta_rule": "gated delta rule",
    "chunk_kimi_delta_attention": "Kimi delta attention",
    "recurrent_kimi_delta_attention": "Kimi delta attention",
    "chunk_kda": "Kimi delta attention",
    "chunk_delta_rule": "delta rule",
    "chunk_gla": "gated linear attention",
    "chunk_simple_gla": "gated linear attention",
    "chunk_retention": "retention",
    "chunk_linear_attn": "linear attention",
    "mamba2_chunk_scan": "state-space dual",
}
"""Functions of Transformers and of flash-linear-attention, all [B, T, heads, D], by the name of what they compute."""
VALUES = ("value", "v", "hidden_states")
STATES = ("initial_state", "initial_states", "state")
RWKV = "rwkv_linear_attention"
LIGHTNING = frozenset({"qkv_proj", "act_fn", "output_gate", "norm", "out_proj"})
LARGEST = 1 << 32
"""Bytes that the matrices of one call may take; W of a delta rule exists only as a whole."""
CONTINUES = (
    "it continues from the state of earlier tokens, whose weights are no longer known; run the whole text in one "
    "forward pass to see them"
)


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _linear(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of `ORIGINS`."""
    bound = _signature(original).bind(*args, **kwargs)
    options = {**bound.arguments, **bound.arguments.get("kwargs", {})}
    options.pop("kwargs", None)
    continued = not _is_empty(next((options[name] for name in STATES if options.get(name) is not None), None))
    options = {name: _without_graph(x) for name, x in options.items() if name not in STATES}
    with suspend_reports():
        result = original(*args, **kwargs)
    out, *rest = result if isinstance(result, tuple) else (result,)
    if continued:
        report_missed(CONTINUES)
    else:
        report(lambda: _by_unit_values(original, options, out))
    out = _ablated(out, dim=2)
    return (out, *rest) if isinstance(result, tuple) else out


def _ablated(out: Tensor, dim: int) -> Tensor:
    for ablation, name in ablations_of():
        ablation.check_maskless(name, "linear attention")
        out = ablation.output(name, out, dim)
    return out


def _by_unit_values(function: Callable[..., Any], options: dict[str, Any], out: Tensor) -> Call:
    """The call of a function that is linear in the values: W is what it returns for v = identity."""
    name = next(name for name in VALUES if name in options)
    v, origin = options[name].detach(), ORIGINS[function.__name__]
    batch, length, heads, _ = v.shape

    def energies(call: Call) -> EnergyMatrix:
        size = batch * heads * length * length * 4
        if size > LARGEST:
            raise ValueError(
                f"the weights of {origin} are computed as a whole, {batch} × {heads} × {length} × {length} numbers "
                f"of {format_bytes(size)}; watch a shorter text or fewer entries"
            )
        units = torch.eye(length, device=v.device)[None, :, None].expand(batch, length, heads, length)
        inputs = {key: _as_float(x) for key, x in options.items()} | {name: units}
        with torch.no_grad(), suspend_reports():
            result = function(**inputs)
        w = result[0] if isinstance(result, tuple) else result
        call.v, call.matrix = v.transpose(1, 2).float(), "it has no softmax: what it returns for unit values"
        return EnergyMatrix.of_matrix(w.transpose(1, 2).detach())

    # They compute in float32, whatever type they are given and return.
    kept = out.detach().transpose(1, 2).to(torch.promote_types(v.dtype, torch.bfloat16))
    kept = kept.float() if kept.dtype == torch.float64 else kept
    learned = [x for x in options.values() if isinstance(x, torch.Tensor)]
    return Call(kept, energies=energies, learned=learned, normalize=Unchanged(), origin=origin, cross=False)


def _without_graph(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) and x.grad_fn is not None else x


def _as_float(x: Any) -> Any:
    return x.detach().float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _is_empty(state: Any) -> bool:
    """Whether a state holds nothing of earlier tokens: none, or zeros. RWKV's third part is the exponent of zeros."""
    parts = [state] if isinstance(state, torch.Tensor) else list(state or ())[:2]
    return not any(bool(x.any()) for x in parts)


@dataclass(frozen=True, slots=True, eq=False)
class TimeDecay(Modifier):
    """e_ij − d_c (i − 1 − j) for earlier keys, e_ij + u_c for the query's own (RWKV-4, Peng et al. 2023, eq. 16)."""

    decay: Float[Tensor, " channels"]
    first: Float[Tensor, " channels"]
    opaque = False
    additive = True

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        decay, first = self.decay.to(e)[batch[-1]], self.first.to(e)[batch[-1]]
        return e + torch.where(i == j, first, -decay * (i - 1 - j))


def _rwkv(
    original: Callable[..., Any],
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: Any = None,
    return_state: bool = False,
) -> Any:
    continued = not _is_empty(state)
    with suspend_reports():
        result = original(time_decay, time_first, key, value, state=state, return_state=return_state)
    out = result[0]
    if continued:
        report_missed(CONTINUES)
        return _ablated(out, dim=-1), *result[1:]

    def make() -> Call:
        """Each channel is a head with one value."""
        k, v, z = (x.detach().mT[..., None] for x in (key, value, out))  # [B, T, C] → [B, C, T, 1]
        decay = TimeDecay(time_decay.detach().float().exp(), time_first.detach().float())
        ones = k.new_ones(1).expand(k.shape)
        energies = EnergyMatrix(ones, k, DotForm(), tuple(k.shape[:2]), (decay,), causal())
        return Call(z, energies=energies, v=v, origin="RWKV, one head per channel", cross=False)

    report(make)
    return _ablated(out, dim=-1), *result[1:]


@dataclass(frozen=True, slots=True, eq=False)
class DistanceDecay(Modifier):
    """e_ij · exp(−m_h (i − j)): a decay of each head's own, as in retention (Sun et al. 2023)."""

    slopes: Float[Tensor, " heads"]
    opaque = False

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return e * torch.exp(-self.slopes.to(e)[batch[-1]] * (i - j).clamp_min(0))


def _lightning(original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """`forward` of a module with the parts `LIGHTNING`."""
    cache = kwargs.get("past_key_values")
    continued = cache is not None and isinstance(cache.get_linear_cache(module.layer_idx), torch.Tensor)
    result = original(module, *args, **kwargs)
    if continued:
        report_missed(CONTINUES, module)
    else:
        _report_lightning(module, result[0], *args, **kwargs)
    return result


def _report_lightning(
    module: Any,
    out: Tensor,
    hidden_states: Float[Tensor, "b t width"],
    *args: Any,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> None:
    heads, width, hidden = module.num_attention_heads, module.head_dim, hidden_states.detach()

    def after(z: Tensor, at: Tensor) -> Tensor:
        """[B, heads, rows, D] → [B, rows, E]"""
        z = module.norm(z.transpose(1, 2).flatten(2).to(hidden.dtype))
        projected: Tensor = module.out_proj(torch.sigmoid(module.output_gate(hidden[:, at])) * z)
        return projected

    def energies(call: Call) -> EnergyMatrix:
        with torch.no_grad(), suspend_reports():
            x = module.act_fn(module.qkv_proj(hidden))
            if attention_mask is not None and attention_mask.dim() == 2 and attention_mask.shape == x.shape[:2]:
                x = x * attention_mask[..., None].to(x.dtype)
            q, k, v = x.unflatten(-1, (heads, 3 * width)).transpose(1, 2).split(width, dim=-1)
        call.v, call.after = v, after
        decay = DistanceDecay(module.slope_rate.detach().flatten().float())
        return replace(dot_energies(q, k, 1.0, masks=(causal(),)), modifiers=(decay,))

    report(
        lambda: Call(
            out.detach(),
            energies=energies,
            learned=[hidden, *module.parameters(), *module.buffers()],
            normalize=Unnormalized(),
            origin="lightning attention",
            cross=False,
        ),
        module,
    )


TAP = Tap(
    "linear attention", functions=dict.fromkeys(ORIGINS, _linear) | {RWKV: _rwkv}, forwards={LIGHTNING: _lightning}
)
