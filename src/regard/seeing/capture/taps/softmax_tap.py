"""The tap of attention that a module writes out: a softmax, and the product with values that follows it.

Names do not decide: a softmax is attention if its result is multiplied with values and summed over the same axis.
Values and output are those of the product. Queries and keys are those of the product before the softmax, if what is
between them can be repeated (`score_trace`); if not, the weights are kept as a whole matrix.
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
from ..recording.recent_masks import forget_masks
from ..tensor_product import einsum_product, matmul_product
from ..written_attention import OpenSoftmax, head_count
from .function_mode import begin_mode, end_mode, finish_modes, other_mode
from .patching import Replacement, Tap
from .score_trace import NOT_FOUND, begin_trace, end_trace, resume_trace, without_softmax
from .value_trace import ValueTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from ..tensor_product import TensorProduct

ATTENTION_NAME = re.compile(r"(attn|attention|\batt|_att)\d*\b.* |.* \S*(attn|attention|\batt_|_att\b)")
"""A name that ends in attention ("self_attn", not "attn_norm"), or a class whose name has it somewhere."""
MOST = 8
"""Softmaxes of one thread that may wait for their product at a time."""


def _untapped(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """The result of a function. A mode of PyTorch may call the replaced one again inside it, and functions others."""
    state = call_routing.local.state
    before, state.suspended = state.suspended, True
    try:
        return original(*args, **kwargs)
    finally:
        state.suspended = before


def _softmax(
    original: Callable[..., Tensor], input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    state = call_routing.local.state
    interface_call = state.interface_call
    origin = end_trace(input) if interface_call is None else NOT_FOUND
    weights = _untapped(original, input, dim, *args, **kwargs)  # F.softmax may call the others
    if sys._getframe(2).f_globals.get("__name__", "").startswith("regard."):  # attend reports its own calls
        return weights
    if interface_call is not None:
        interface_call.weights = weights
        return weights
    if not (call_routing.watches or call_routing.ablations) or dim is None or weights.dim() < 2 or weights.is_nested:
        return weights
    module = call_routing.calling_module()
    if module is not None:
        waiting = state.softmaxes
        for softmax in [x for x in waiting if x.pieces]:  # all of its products that there are
            waiting.remove(softmax)
            _report(softmax)
        if len(waiting) == MOST:
            _report(waiting.pop(0))
        state.unheard = state.log = None
        softmax = OpenSoftmax(weights, dim % weights.dim(), module, origin)
        waiting.append(softmax)
        begin_mode(ValueTrace(softmax, _find_product))
    return weights


def _matmul(original: Callable[..., Tensor], input: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out = _untapped(original, input, other, *args, **kwargs)
    if isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor):
        found = _find_softmax(lambda: matmul_product(input, other, out), out, input, other)
        if found is not None:
            return found
        if input.dim() > 1 < other.dim() and input.shape[-1] > 1:
            begin_trace(out, input, other)
    return out


def _reflected(original: Callable[..., Tensor], input: Tensor, other: Tensor) -> Tensor:
    out = _untapped(original, input, other)
    found = None
    if isinstance(other, torch.Tensor):
        found = _find_softmax(lambda: matmul_product(other, input, out), out, other, input)
    return out if found is None else found


def _einsum(original: Callable[..., Tensor], *args: Any) -> Tensor:
    out = _untapped(original, *args)
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if isinstance(args[0], str) and len(operands) == 2:
        a, b = operands
        found = _find_softmax(lambda: einsum_product(args[0], a, b, out), out, a, b)
        if found is not None:
            return found
        begin_trace(out, a, b, args[0])
    return out


def _baddbmm(
    original: Callable[..., Tensor], input: Tensor, batch1: Tensor, batch2: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """input + q·k: a bias and scores in one function. Values are not multiplied by it."""
    out = _untapped(original, input, batch1, batch2, *args, **kwargs)
    beta, scale = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    if not args and beta in (0, 1) and isinstance(scale, int | float):
        begin_trace(out, batch1, batch2, None, scale, input if beta else None)
    return out


def _find_softmax(make: Callable[[], TensorProduct | None], out: Tensor, *operands: Tensor) -> Tensor | None:
    """Report the product if one of its operands is the result of a softmax that waits for it.

    Returns its output, without the heads that an ablation silences; None if no softmax waits for it.
    """
    state = call_routing.local.state
    waiting = state.softmaxes
    if not waiting:
        return None
    with call_routing.suspend_reports():
        if not any(softmax.may_be(x) for softmax in waiting for x in operands):
            return None
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
        return None
    ablated = _ablated(softmax, out) if call_routing.ablations else out
    if softmax.complete:
        waiting.remove(softmax)
        end_mode()
        _report(softmax)
        state.memory_accesses += len(waiting)  # no mode follows those that still wait
        resume_trace()
    return ablated


def _find_product(product: TensorProduct) -> Tensor | None:
    return _find_softmax(lambda: product, product.out, *product.operands)


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
    call_routing.local.state.paused_trace = None
    end_mode()
    forget_masks()
    waiting, call_routing.local.state.softmaxes = call_routing.local.state.softmaxes, []
    for softmax in waiting:
        _report(softmax)


def _forget() -> None:
    """After the last watch or ablation: what an ablation alone left waiting is nobody's."""
    call_routing.local.state.softmaxes.clear()
    call_routing.local.state.paused_trace = None
    end_mode()
    finish_modes()
    without_softmax.clear()


def _report(softmax: OpenSoftmax) -> None:
    """Report the products of a softmax.

    Where there are none, a module that is named attention is reported with its weights alone. A gate, whose numbers are
    multiplied one by one, and a softmax over one entry are named as unseen.
    """
    if softmax.pieces:
        with call_routing.suspend_reports():
            call_routing.try_report(softmax.record, softmax.module, output=softmax.output())
        return
    weights, heads = softmax.weights, head_count(softmax.module)
    last, axes, entries = weights.dim() - 1, weights.dim(), weights.shape[softmax.dim]

    def is_attention(name: str) -> bool:
        return bool(ATTENTION_NAME.search(name.lower()))

    by_rows = softmax.dim == last and ((heads is None and axes in (3, 4)) or (axes == 4 and weights.shape[1] == heads))
    if by_rows and entries > 1 and not softmax.is_gate:
        reason = other_mode() or "no product with values was found after its softmax"
        record = record_of_weights(weights, reason=reason)
        call_routing.report(record, softmax.module, name_filter=is_attention)
        return
    call_routing.report_missed(
        f"its softmax over {entries} entries, {list(weights.shape)}, is not followed by a product "
        "with values: weights over sampled points, or a gate",
        softmax.module,
        name_filter=is_attention,
    )


def _follows_products() -> bool:
    """Whether a product may be one of attention. Inside an interface its arguments are known."""
    state = call_routing.local.state
    if state.suspended or (state.interface_call is not None and not state.softmaxes):
        return False
    return call_routing.is_active()


def _replacements() -> Iterable[Replacement]:
    for owner in (F, torch, torch.Tensor):
        yield Replacement(owner, "softmax", _softmax)
    for owner in (torch, torch.Tensor):
        yield Replacement(owner, "matmul", _matmul, _follows_products)
        yield Replacement(owner, "bmm", _matmul, _follows_products)
        yield Replacement(owner, "baddbmm", _baddbmm, _follows_products)
    yield Replacement(torch.Tensor, "__matmul__", _matmul, _follows_products)
    yield Replacement(torch.Tensor, "__rmatmul__", _reflected, _follows_products)
    yield Replacement(torch, "einsum", _einsum, _follows_products)


TAP = Tap("a softmax followed by a product with values", _replacements, on_close=close_softmaxes, on_remove=_forget)
