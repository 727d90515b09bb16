"""FollowingMode: a function mode of PyTorch that follows a stretch of a model's code. Each thread has one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .. import call_routing

if TYPE_CHECKING:
    from collections.abc import Callable

_length = getattr(torch._C, "_len_torch_function_stack", None)
_push = getattr(torch._C, "_push_on_torch_function_stack", None)
_pop = getattr(torch._C, "_pop_torch_function_stack", None)
"""The stack of function modes, private to PyTorch. Without these functions nothing is followed."""


class FollowingMode(TorchFunctionMode):
    """Sees the functions that run while it is open, at most `left` of them. A subclass gives `follow`."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.inside = False
        """Whether one of these functions runs now. PyTorch has taken the mode off the stack until it returns."""

    def follow(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call the function, and return its result."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "is_tap", False):  # it runs already, and has called the original
            func = func.__wrapped__  # type: ignore[attr-defined]
        options, self.inside = kwargs or {}, True
        try:
            if self.left <= 0 or torch.compiler.is_compiling():
                return func(*args, **options)
            self.left -= 1
            return self.follow(func, args, options)
        finally:
            self.inside = False


def begin_mode(mode: FollowingMode) -> None:
    """Open a mode, unless the model has opened one of its own: that would be closed in place of this one."""
    end_mode()
    if call_routing.thread_state.trace is None and _length is not None and _push is not None and not _length():
        call_routing.thread_state.trace = mode
        _push(mode)


def end_mode() -> None:
    """Close the mode that is open in this thread, if there is one. Modes that were opened after it stay open."""
    trace = call_routing.thread_state.trace
    if trace is None or _length is None or _push is None or _pop is None:
        return
    trace.left = 0
    if trace.inside:
        return  # it is not on the stack now, and will be closed by the next call of this function
    call_routing.thread_state.trace = None
    above = []
    while _length():
        mode = _pop()
        if mode is trace:
            break
        above.append(mode)
    for mode in reversed(above):
        _push(mode)
