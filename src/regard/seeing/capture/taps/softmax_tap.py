"""The tap of attention that a module writes out: a softmax, and the product with values that follows it.

Names do not decide: a softmax is attention if its result is multiplied with values and summed over the same axis. The
weights are kept as a whole matrix, which such a model stores anyway. Values and output are those of the product.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ....attention.tensor_versions import ChangedInPlaceError
from .. import call_routing
from ..computed_weights import record_of_weights
from ..tensor_product import einsum_product, matmul_product
from ..written_attention import OpenSoftmax, head_count
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from ..tensor_product import TensorProduct

ATTENTION_NAME = re.compile(r"(attn|attention|\batt|_att)\d*\b.* |.* \S*(attn|attention|\batt_|_att\b)")
"""A name that ends in attention ("self_attn", not "attn_norm"), or a class whose name has it somewhere."""
MOST = 8
"""Softmaxes of one thread that may wait for their product at a time."""


def _softmax(
    original: Callable[..., Tensor], input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    with call_routing.suspend_reports():  # F.softmax may call the others
        weights = original(input, dim, *args, **kwargs)
    if not (call_routing.watches or call_routing.ablations) or dim is None or weights.dim() < 2 or weights.is_nested:
        return weights
    if sys._getframe(2).f_globals.get("__name__", "").startswith("regard."):  # attend reports its own calls
        return weights
    state = call_routing.thread_state
    if state.interface_call is not None:
        state.interface_call.weights = weights
        return weights
    module = call_routing.calling_module()
    if module is not None:
        waiting = state.softmaxes
        for softmax in [x for x in waiting if x.pieces]:  # all of its products that there are
            waiting.remove(softmax)
            _report(softmax)
        if len(waiting) == MOST:
            _report(waiting.pop(0))
        state.events += 1
        waiting.append(OpenSoftmax(weights, dim % weights.dim(), module))
    return weights


def _matmul(original: Callable[..., Tensor], input: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out = original(input, other, *args, **kwargs)
    if isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor):
        return _find_softmax(lambda: matmul_product(input, other, out), out, input, other)
    return out


def _reflected(original: Callable[..., Tensor], input: Tensor, other: Tensor) -> Tensor:
    out = original(input, other)
    if isinstance(other, torch.Tensor):
        return _find_softmax(lambda: matmul_product(other, input, out), out, other, input)
    return out


def _einsum(original: Callable[..., Tensor], *args: Any) -> Tensor:
    out = original(*args)
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if isinstance(args[0], str) and len(operands) == 2:
        a, b = operands
        return _find_softmax(lambda: einsum_product(args[0], a, b, out), out, a, b)
    return out


def _find_softmax(make: Callable[[], TensorProduct | None], out: Tensor, *operands: Tensor) -> Tensor:
    """Report the product if one of its operands is the result of a softmax that waits for it.

    Returns its output, without the heads that an ablation silences.
    """
    waiting = call_routing.thread_state.softmaxes
    if not any(softmax.may_be(x) for softmax in waiting for x in operands):
        return out
    try:
        with torch.no_grad(), call_routing.suspend_reports():
            product = make()
            softmax = None if product is None else next((x for x in reversed(waiting) if x.add(product)), None)
    except ChangedInPlaceError as error:
        call_routing.report_missed(str(error))
        return out
    except Exception as error:  # an error of ours must not stop the model
        call_routing.report_missed(call_routing.failure(error))
        return out
    if softmax is None:
        return out
    ablated = _ablated(softmax, out) if call_routing.ablations else out
    if softmax.complete:
        waiting.remove(softmax)
        _report(softmax)
    return ablated


def _ablated(softmax: OpenSoftmax, out: Tensor) -> Tensor:
    """The output of the last product of a softmax, with ablated heads set to zero."""
    axis, w = softmax.head_axis(), softmax.pieces[-1].weights
    for ablation, name in call_routing.ablations_of(softmax.module):
        ablation.check_written_out(name, w.shape[-2], softmax.weights.shape[softmax.dim], axis is not None)
        if axis is not None:
            out = ablation.output(name, out, *axis)
    return out


def close_softmaxes() -> None:
    """At the end of a watch: no product will follow."""
    waiting, call_routing.thread_state.softmaxes = call_routing.thread_state.softmaxes, []
    for softmax in waiting:
        _report(softmax)


def _forget() -> None:
    """After the last watch or ablation: what an ablation alone left waiting is nobody's."""
    call_routing.thread_state.softmaxes.clear()


def _report(softmax: OpenSoftmax) -> None:
    """Report the products of a softmax. Where there are none, and the module is named attention, its weights alone."""
    if softmax.pieces:
        call_routing.try_report(softmax.record, softmax.module, output=softmax.output())
        return
    weights, heads = softmax.weights, head_count(softmax.module)
    last, axes = weights.dim() - 1, weights.dim()

    def is_attention(name: str) -> bool:
        return bool(ATTENTION_NAME.search(name.lower()))

    if softmax.dim == last and ((heads is None and axes in (3, 4)) or (axes == 4 and weights.shape[1] == heads)):
        call_routing.report(record_of_weights(weights), softmax.module, name_filter=is_attention)
        return
    call_routing.report_missed(
        f"its softmax over {weights.shape[softmax.dim]} entries, {list(weights.shape)}, is not followed by a product "
        "with values: weights over sampled points, or a gate",
        softmax.module,
        name_filter=is_attention,
    )


def _is_awaited() -> bool:
    """Whether a product may be that of attention."""
    return bool(call_routing.thread_state.softmaxes) and call_routing.is_active()


def _replacements() -> Iterable[Replacement]:
    for owner in (F, torch, torch.Tensor):
        yield Replacement(owner, "softmax", _softmax)
    for owner in (torch, torch.Tensor):
        yield Replacement(owner, "matmul", _matmul, _is_awaited)
        yield Replacement(owner, "bmm", _matmul, _is_awaited)
    yield Replacement(torch.Tensor, "__matmul__", _matmul, _is_awaited)
    yield Replacement(torch.Tensor, "__rmatmul__", _reflected, _is_awaited)
    yield Replacement(torch, "einsum", _einsum, _is_awaited)


TAP = Tap("a softmax followed by a product with values", _replacements, on_close=close_softmaxes, on_remove=_forget)
