"""nn.MultiheadAttention and nn.TransformerEncoderLayer: where they compute weights, and their inference fast paths.

With need_weights=False they end in scaled_dot_product_attention, which has a tap of its own. Otherwise projections and
attention are one function, in which queries and keys are never seen. They are then worked out when somebody asks, by
running the same projections again; the proof is taken at the output that the model did compute.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ....attention.tensor_versions import ChangedInPlaceError, TensorVersions
from .. import dispatch
from ..record import some_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from ..record import Record

FORWARD = inspect.signature(F.multi_head_attention_forward)
MASKS_KEYS, MASKS_ALL = 1, 2  # mask_type of the fast paths: [B, T_k], [B, heads, T_q, T_k]; 0 is [T_q, T_k]


def places() -> Iterator[tuple[tuple[Any, str], Callable[..., Any]]]:
    yield (F, "multi_head_attention_forward"), forward
    for name, tapped in (("_native_multi_head_attention", native), ("_transformer_encoder_layer_fwd", layer)):
        if hasattr(torch, name):  # PyTorch's own business
            yield (torch, name), tapped


def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = FORWARD.bind(*args, **kwargs)
    given.apply_defaults()
    options = given.arguments
    if not options["need_weights"]:
        return original(*args, **kwargs)
    if dispatch.changed(None):
        raise ValueError("nn.MultiheadAttention is ablated only with need_weights=False; call it so")
    with dispatch.quietly():
        result = original(*args, **kwargs)
    out = result[0].detach()
    options = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    drop = options["dropout_p"] if options["training"] else 0.0
    options |= {"need_weights": False, "dropout_p": 0.0}
    same = options["query"] is options["key"] or options["query"].data_ptr() == options["key"].data_ptr()
    rows, shown = some_rows(out.transpose(0, 1) if out.dim() == 3 else out[None])  # from [T, B, E] or [T, E]

    unchanged = _versions(*options.values())

    def make() -> Record:
        unchanged()
        record = _worked_out(original, options)
        after = _projected(options["out_proj_weight"], options["out_proj_bias"])
        origin = "nn.MultiheadAttention"
        return replace(record, out=shown, rows=rows, after=after, origin=origin, dropout=drop, cross=not same)

    dispatch.report(make, held=_tensors(options, shown))
    return result


def native(original: Callable[..., Any], *args: Any) -> Any:
    """torch._native_multi_head_attention: batch first, and evaluation only."""
    result = original(*args)
    query, key, value, width, heads, w_in, b_in, w_out, b_out, *rest = args
    mask, kind = (rest[0], rest[3]) if len(rest) > 3 else (None, None)
    rows, out = _some_rows(result[0])
    unchanged = _versions(*args)

    def make() -> Record:
        unchanged()
        options = _options(query, key, value, width, heads, w_in, b_in, w_out, b_out, mask, kind)
        record = _worked_out(F.multi_head_attention_forward, options)
        origin = "nn.MultiheadAttention, fast path"
        return _real(
            replace(record, out=out, rows=rows, after=_projected(w_out, b_out), origin=origin, cross=query is not key),
            query,
        )

    dispatch.report(make, held=(query, key, value, out))
    return result


def layer(original: Callable[..., Tensor], *args: Any) -> Tensor:
    """torch._transformer_encoder_layer_fwd: the whole layer in one kernel."""
    out = original(*args)
    src, width, heads, w_in, b_in, w_out, b_out, gelu, first, eps, *rest = args
    norm1, norm2, up, down = (tuple(rest[at : at + 2]) for at in (0, 2, 4, 6))
    mask, kind = (*rest[8:], None, None)[:2]

    def norm(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, (width,), *by, eps)

    def feed(x: Tensor) -> Tensor:
        return F.linear((F.gelu if gelu else F.relu)(F.linear(x, *up)), *down)

    unchanged, (kept, shown) = _versions(*args), _some_rows(out)

    def make() -> Record:
        unchanged()
        whole = _padded(src)
        x = norm(whole, norm1) if first else whole
        options = _options(x, x, x, width, heads, w_in, b_in, w_out, b_out, mask, kind, lengths=_lengths(src))
        record = _worked_out(F.multi_head_attention_forward, options)
        project = _projected(w_out, b_out)

        def after(z: Tensor, rows: Tensor) -> Tensor:
            y = whole[:, rows] + project(z, rows)
            if first:
                return y + feed(norm(y, norm2))
            y = norm(y, norm1)
            return norm(y + feed(y), norm2)

        origin = "nn.TransformerEncoderLayer, fast path"
        return _real(replace(record, out=shown, rows=kept, after=after, origin=origin, cross=False), src)

    dispatch.report(make, held=(src, shown))
    return out


def _worked_out(function: Callable[..., Any], options: dict[str, Any]) -> Record:
    """The call of scaled_dot_product_attention that the same inputs lead to without weights."""
    from .. import taps

    taps.install()
    try:
        with torch.no_grad(), dispatch.capturing() as calls:
            function(**options)
    finally:
        taps.remove()
    return calls[-1]


def _projected(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    def after(z: Tensor, rows: Tensor) -> Tensor:
        """[B, heads, rows, D] → [B, rows, E]"""
        return F.linear(z.transpose(1, 2).flatten(2), weight, bias)

    return after


def _options(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    w_in: Tensor,
    b_in: Tensor,
    w_out: Tensor,
    b_out: Tensor,
    mask: Tensor | None,
    kind: int | None,
    lengths: Tensor | None = None,
) -> dict[str, Any]:
    """The same request in the words of F.multi_head_attention_forward: sequence first."""
    lengths = _lengths(query) if lengths is None else lengths
    q, k, v = (_padded(x).transpose(0, 1) for x in (query, key, value))
    closed, padding = mask, None
    if lengths is not None:
        padding = torch.arange(k.shape[0], device=k.device) >= lengths[:, None]
    elif mask is not None and kind == MASKS_KEYS:
        closed, padding = None, mask
    elif mask is not None and kind == MASKS_ALL:
        closed = mask.expand(q.shape[1], heads, q.shape[0], k.shape[0]).flatten(0, 1)
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
        "attn_mask": closed,
    }


def _some_rows(out: Tensor) -> tuple[Tensor | None, Tensor]:
    """`some_rows`, or all of a nested tensor, out of which rows cannot be taken."""
    return (None, out) if out.is_nested else some_rows(out)


def _padded(x: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(x, 0.0) if x.is_nested else x


def _lengths(x: Tensor) -> Tensor | None:
    """Lengths of a nested tensor's sequences, which TransformerEncoder makes of padding."""
    return torch.tensor([len(part) for part in x.unbind()], device=x.device) if x.is_nested else None


def _real(record: Record, nested: Tensor) -> Record:
    """The output without the rows that are only there because others are longer."""
    lengths = _lengths(nested)
    if lengths is None:
        return record
    out, after = _padded(record.out), record.after
    assert after is not None
    real = torch.arange(out.shape[1], device=out.device) < lengths[:, None]

    def without(z: Tensor, rows: Tensor) -> Tensor:
        return after(z, rows) * real[:, rows, None]

    return replace(record, out=out, after=without)


def _versions(*inputs: Any) -> Callable[[], None]:
    """A check to be called later: it refuses to go on where a tensor of these was changed in place."""
    versions = TensorVersions(x for x in inputs if isinstance(x, torch.Tensor))

    def unchanged() -> None:
        if versions.changed():
            raise ChangedInPlaceError(
                "the inputs or parameters of nn.MultiheadAttention were changed in place since it was called, and its "
                "queries and keys are worked out from them; ask before changing them (before optimizer.step())"
            )

    return unchanged


def _tensors(options: dict[str, Any], out: Tensor) -> tuple[Tensor, ...]:
    return (*(options[name] for name in ("query", "key", "value")), out)
