"""The taps of functions that do not show what weights are made of: it is computed again when somebody asks.

nn.MultiheadAttention with need_weights=True, and the fast paths of it and of nn.TransformerEncoderLayer: projections
and attention are one function, which exposes no queries and keys. The same projections are run again; fidelity is
measured on the output of the model. With need_weights=False they call scaled_dot_product_attention, which has a tap of
its own.

Linear attention: functions of queries, keys, decays and values that are linear in the values. Their output is W·v,
where W depends on everything but the values. Two ways lead to W:

- Delta rules and state-space duals have no shorter form. W is what the same function returns for unit values
  (v = identity); until then the arguments are kept, which takes O(T).
- Of RWKV's average the energies are known: k_j less a decay for each token between, normalised by a softmax.

A call that continues from a state has weights on earlier tokens, which are gone; it is reported as missed.

Lightning attention in MiniMax's form: a module whose parts say what it computes, w_ij = q_i·k_j exp(−m_h (i − j)) for
j ≤ i (Qin et al. 2024, "Lightning Attention-2"; MiniMax-01 2025). The module runs blocks of it, without a function that
could be replaced; queries, keys and values are computed again from its input.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from ..attention.energies import DotForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import causal
from ..attention.modifiers import Modifier
from ..attention.normalizers import Unchanged, Unnormalized
from .call import Call, dot_energies
from .storage import format_bytes
from .watch import (
    Replacement,
    Tap,
    ablations_of,
    capture_calls,
    local,
    opened,
    report,
    report_missed,
    suspend_reports,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from ..attention.parts import Batch

NAMES = tuple(inspect.signature(F.multi_head_attention_forward).parameters)
DEFAULTS = {
    name: x.default
    for name, x in inspect.signature(F.multi_head_attention_forward).parameters.items()
    if x.default is not inspect.Parameter.empty
}
NEED_WEIGHTS = NAMES.index("need_weights")
KEY_PADDING, FULL_MASK = 1, 2  # mask_type of the fast paths: [B, T_k], [B, heads, T_q, T_k]; 0 is [T_q, T_k]


def _module_forward(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Notes which module runs. To find it by the call stack takes longer: its `forward` has many variables."""
    state = local.state
    before, state.multihead_forward = state.multihead_forward, module
    try:
        return original(module, *args, **kwargs)
    finally:
        state.multihead_forward = before


def _forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    needs_weights = args[NEED_WEIGHTS] if len(args) > NEED_WEIGHTS else kwargs.get("need_weights", True)
    state = local.state
    module = state.multihead_forward
    if not needs_weights:
        outer, state.multihead = state.multihead, module
        try:
            return original(*args, **kwargs)
        finally:
            state.multihead = outer
    if opened.ablations and ablations_of():
        raise ValueError("nn.MultiheadAttention can be ablated only when called with need_weights=False")
    before, state.suspended = state.suspended, True
    try:
        result = original(*args, **kwargs)
    finally:
        state.suspended = before
    # Every line here runs once for each call of a watched model, and is written for speed.
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if [x for x in tensors if x.grad_fn is not None]:  # parameters have no graph, and are kept as they are
        args = tuple([_without_graph(x) for x in args])
        kwargs = {name: _without_graph(x) for name, x in kwargs.items()}
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    options = DEFAULTS | dict(zip(NAMES, args, strict=False)) | kwargs
    query, key = options["query"], options["key"]

    def energies(call: Call) -> EnergyMatrix:
        inner = _inner_call(original, options | {"need_weights": False, "dropout_p": 0.0})
        call.after = _output_projection(options["out_proj_weight"], options["out_proj_bias"])
        return _taken(call, inner)

    def arrange(g: Tensor) -> Tensor:
        """From [T, B, E] or [T, E] after the output projection to [B, heads, T, D] before it.

        Under autocast the gradient is of the lower precision, and the parameter is not.
        """
        g = _batch_first(g)
        before: Tensor = (g @ options["out_proj_weight"].to(g.dtype)).unflatten(-1, (options["num_heads"], -1))
        return before.transpose(1, 2)

    report(
        lambda: Call(
            _batch_first(result[0].detach()),
            energies=energies,
            learned=tensors,
            origin="nn.MultiheadAttention",
            dropout=options["dropout_p"] if options["training"] else 0.0,
            cross=query is not key and query.data_ptr() != key.data_ptr(),
        ),
        module,
        output=result[0],
        arrange=arrange,
    )
    return result


def _batch_first(out: Tensor) -> Tensor:
    """From [T, B, E] or [T, E] to [B, T, E]."""
    return out.transpose(0, 1) if out.dim() == 3 else out[None]


def _taken(call: Call, inner: Call) -> EnergyMatrix:
    """The energies of the inner call, whose values and normalizer the outer one gets."""
    call.v, call.normalize, call.state = inner.v, inner.normalize, inner.state
    return inner.energies


def _native(original: Callable[..., Any], *args: Any) -> Any:
    """torch._native_multi_head_attention: batch first, and evaluation only."""
    result = original(*args)
    (query, key, value), layer, rest = args[:3], args[3:9], args[9:]
    mask, mask_type = (rest[0], rest[3]) if len(rest) > 3 else (None, None)

    def energies(call: Call) -> EnergyMatrix:
        options = _options(query, key, value, layer, mask, mask_type, _lengths(query))
        call.after = _output_projection(*layer[-2:])
        _without_padding(call, query)
        return _taken(call, _inner_call(F.multi_head_attention_forward, options))

    report(
        lambda: Call(
            result[0].detach(),
            energies=energies,
            learned=[x for x in args if isinstance(x, torch.Tensor)],
            origin="nn.MultiheadAttention, fast path",
            cross=query is not key,
        ),
        local.state.multihead_forward,
    )
    return result


def _encoder_layer(original: Callable[..., Tensor], *args: Any) -> Tensor:
    """torch._transformer_encoder_layer_fwd: the whole layer in one kernel."""
    out = original(*args)
    src, layer, (gelu, norm_first, eps, *rest) = args[0], args[1:7], args[7:]
    norm1, norm2, up, down = (tuple(rest[at : at + 2]) for at in (0, 2, 4, 6))
    mask, mask_type = (*rest[8:], None, None)[:2]

    def norm(x: Tensor, parameters: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, layer[:1], *parameters, eps)

    def feed_forward(x: Tensor) -> Tensor:
        return F.linear((F.gelu if gelu else F.relu)(F.linear(x, *up)), *down)

    def energies(call: Call) -> EnergyMatrix:
        padded, project = _padded(src), _output_projection(*layer[-2:])
        x = norm(padded, norm1) if norm_first else padded

        def after(z: Tensor, rows: Tensor) -> Tensor:
            y = padded[:, rows] + project(z, rows)
            if norm_first:
                return y + feed_forward(norm(y, norm2))
            y = norm(y, norm1)
            return norm(y + feed_forward(y), norm2)

        call.after = after
        _without_padding(call, src)
        options = _options(x, x, x, layer, mask, mask_type, _lengths(src))
        return _taken(call, _inner_call(F.multi_head_attention_forward, options))

    report(
        lambda: Call(
            out.detach(),
            energies=energies,
            learned=[x for x in args if isinstance(x, torch.Tensor)],
            origin="nn.TransformerEncoderLayer, fast path",
            cross=False,
        )
    )
    return out


def _inner_call(function: Callable[..., Any], options: dict[str, Any]) -> Call:
    """The call of scaled_dot_product_attention that the same inputs lead to with need_weights=False."""
    with torch.no_grad(), capture_calls() as calls:
        function(**options)
    return calls[-1]


def _output_projection(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    def after(z: Tensor, rows: Tensor) -> Tensor:
        """[B, heads, rows, D] → [B, rows, E]"""
        return F.linear(z.transpose(1, 2).flatten(2), weight, bias)

    return after


def _options(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layer: tuple[Any, ...],
    mask: Tensor | None,
    mask_type: int | None,
    lengths: Tensor | None,
) -> dict[str, Any]:
    """The arguments of F.multi_head_attention_forward for the same call: sequence first.

    `layer` is what both fast paths take: width, heads, then weight and bias of the input and the output projection.
    """
    width, heads, w_in, b_in, w_out, b_out = layer
    q, k, v = (_padded(x).transpose(0, 1) for x in (query, key, value))
    attn_mask, padding = mask, None
    if lengths is not None:
        padding = torch.arange(k.shape[0], device=k.device) >= lengths[:, None]
    elif mask is not None and mask_type == KEY_PADDING:
        attn_mask, padding = None, mask
    elif mask is not None and mask_type == FULL_MASK:
        attn_mask = mask.expand(q.shape[1], heads, q.shape[0], k.shape[0]).flatten(0, 1)
    return {
        "query": q,
        "key": k,
        "value": v,
        "embed_dim_to_check": width,
        "num_heads": heads,
        "in_proj_weight": w_in,
        "in_proj_bias": b_in,
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": w_out,
        "out_proj_bias": b_out,
        "training": False,
        "key_padding_mask": padding,
        "need_weights": False,
        "attn_mask": attn_mask,
    }


def _padded(x: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(x, 0.0) if x.is_nested else x


def _lengths(x: Tensor) -> Tensor | None:
    """The lengths of a nested tensor's sequences; nn.TransformerEncoder makes one of a padded batch."""
    return torch.tensor([len(part) for part in x.unbind()], device=x.device) if x.is_nested else None


def _without_padding(call: Call, nested: Tensor) -> None:
    """Set padded rows of the output to zero."""
    lengths = _lengths(nested)
    if lengths is None or call.out is None:
        return
    call.out, after = _padded(call.out), call.after
    assert after is not None
    real = torch.arange(call.out.shape[1], device=call.out.device) < lengths[:, None]

    def masked(z: Tensor, rows: Tensor) -> Tensor:
        return after(z, rows) * real[:, rows, None]

    call.after = masked


FAST_PATHS = {"_native_multi_head_attention": _native, "_transformer_encoder_layer_fwd": _encoder_layer}
MULTIHEAD_TAP = Tap(
    "nn.MultiheadAttention",
    [
        Replacement(F, "multi_head_attention_forward", _forward),
        Replacement(nn.MultiheadAttention, "forward", _module_forward),
        *(Replacement(torch, name, tap) for name, tap in FAST_PATHS.items() if hasattr(torch, name)),  # private
    ],
)


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
        report(lambda: _by_unit_values(original, options, out), output=out, arrange=_heads_first)
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


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def _channels_as_heads(x: Tensor) -> Tensor:
    """[B, T, C] → [B, C, T, 1]"""
    return x.mT[..., None]


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

    report(make, output=out, arrange=_channels_as_heads)
    return _ablated(out, dim=-1), *result[1:]


@dataclass(frozen=True, slots=True, eq=False)
class DistanceDecay(Modifier):
    """e_ij · exp(−m_h (i − j)): a decay of each head's own, as in retention (Sun et al. 2023)."""

    slopes: Float[Tensor, " heads"]
    opaque = False

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return e * torch.exp(-self.slopes.to(e)[batch[-1]] * (i - j).clamp_min(0))


def _lightning(original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """`forward` of a module with the parts `LIGHTNING`; of another kind if it has no decays."""
    if not hasattr(module, "slope_rate"):
        return original(module, *args, **kwargs)
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
        output=out,
    )


LINEAR_TAP = Tap(
    "linear attention", functions=dict.fromkeys(ORIGINS, _linear) | {RWKV: _rwkv}, forwards={LIGHTNING: _lightning}
)
