"""The tap of nn.MultiheadAttention with need_weights=True, and of its and nn.TransformerEncoderLayer's fast paths.

With need_weights=False they call scaled_dot_product_attention, which has a tap of its own. Otherwise projections and
attention are one function, which exposes no queries and keys. These are computed when they are needed, by running the
same projections again; fidelity is measured on the output of the model.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from .call import Call
from .watch import Replacement, Tap, ablations_of, capture_calls, local, opened, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..attention.energy_matrix import EnergyMatrix

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


def _without_graph(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) and x.grad_fn is not None else x


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
TAP = Tap(
    "nn.MultiheadAttention",
    [
        Replacement(F, "multi_head_attention_forward", _forward),
        Replacement(nn.MultiheadAttention, "forward", _module_forward),
        *(Replacement(torch, name, tap) for name, tap in FAST_PATHS.items() if hasattr(torch, name)),  # private
    ],
)
