"""FollowingMode: a function mode of PyTorch that follows a stretch of a model's code. Each thread has one at a time."""

from __future__ import annotations

import importlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .. import call_routing

if TYPE_CHECKING:
    from collections.abc import Callable

_default_device = importlib.import_module("torch.utils._device")
_length = getattr(torch._C, "_len_torch_function_stack", None)
_push = getattr(torch._C, "_push_on_torch_function_stack", None)
_pop = getattr(torch._C, "_pop_torch_function_stack", None)
_mode_at = getattr(torch._C, "_get_function_stack_at", None)
"""The stack of function modes, private to PyTorch. Without these functions nothing is followed."""
_MEMORY_FUNCTIONS = frozenset(
    (
        torch.Tensor.data.__get__,  # type: ignore[attr-defined]
        torch.Tensor.data.__set__,  # type: ignore[attr-defined]
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
    )
)
"""Functions that give the memory of a tensor away. The version counter does not count what is written there."""


class FollowingMode(TorchFunctionMode):
    """Sees the functions that run while it is open, at most `left` of them. A subclass gives `follow`."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.inside = False
        """Whether one of these functions runs now. PyTorch has taken the mode off the stack until it returns."""

    def finish(self) -> None:
        """Follow nothing more, and hold no tensor. A subclass adds what it holds."""
        self.left = 0

    def follow(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call the function, and return its result."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "is_tap", False):  # it runs already, and has called the original
            func = func.__wrapped__  # type: ignore[attr-defined]
        if func in _MEMORY_FUNCTIONS and not call_routing.local.state.suspended:
            call_routing.local.state.memory_accesses += 1
        options, self.inside = kwargs or {}, True
        try:
            if self.left <= 0 or torch.compiler.is_compiling():
                return func(*args, **options)
            self.left -= 1
            return self.follow(func, args, options)
        finally:
            self.inside = False


_open: weakref.WeakSet[FollowingMode] = weakref.WeakSet()
_lock = threading.Lock()


def other_mode() -> str:
    """Why nothing can be followed now: a mode of the model's own would be closed in place of ours; "" if there is none.

    That of `torch.set_default_device` is none of these: it is the first of the stack, and is taken from there whatever
    was opened after it. It is off the stack while one of its functions runs.
    """
    trace = call_routing.local.state.trace
    others = 0 if _length is None else _length() - (0 if trace is None or trace.inside else 1)
    if getattr(_default_device, "CURRENT_DEVICE", None) is not None:
        context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
        if others == 1 and context is not None and _mode_at is not None and _mode_at(0) is context:
            return ""
        return "a device is set (torch.device, torch.set_default_device), which hides what is before the softmax"
    if others:
        return "a function mode of PyTorch is open, which hides what is between products and softmax"
    return ""


def begin_mode(mode: FollowingMode) -> None:
    """Open a mode, unless another one is open."""
    end_mode()
    if call_routing.local.state.trace is None and _push is not None and _length is not None and not other_mode():
        call_routing.local.state.trace = mode
        with _lock:
            _open.add(mode)
        _push(mode)


def finish_modes() -> None:
    """After the last watch: modes that other threads left open hold nothing. Only their thread can close them."""
    with _lock:
        for mode in _open:
            mode.finish()


def end_mode() -> None:
    """Close the mode that is open in this thread, if there is one. Modes that were opened after it stay open."""
    trace = call_routing.local.state.trace
    if trace is None or _length is None or _push is None or _pop is None:
        return
    trace.finish()
    if trace.inside:
        return  # it is not on the stack now, and will be closed by the next call of this function
    call_routing.local.state.trace = None
    above = []
    while _length():
        mode = _pop()
        if mode is trace:
            break
        above.append(mode)
    for mode in reversed(above):
        _push(mode)
