"""Starting a Triton kernel: in little time, or with memory for descriptors."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import Tensor


class Launch:
    """`kernel[grid](*tensors, *numbers, **options)`, the constants last among the numbers.

    Triton asks of each argument its type, whether it is 1 and whether 16 divides it, on every call: some 50 µs for a
    kernel with forty of them. Here it asks once, and what it compiled then is started directly. So a `Launch` is good
    for one `kind` of tensors: whoever keeps it, keeps it by that.
    """

    def __init__(self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[Any, ...], **options: int) -> None:
        self.kernel, self.grid, self.numbers, self.options = kernel, grid, numbers, options
        self.started: Any = None

    def __call__(self, *tensors: Tensor | None) -> None:
        elsewhere = _elsewhere(next(x for x in tensors if x is not None))
        if elsewhere is not None:
            with elsewhere:
                self(*tensors)
            return
        if self.started is not None:
            self.started(*tensors, *self.numbers)
            return
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        if compiled is not None:  # the interpreter compiles nothing
            self.started = compiled[self.grid]


def _elsewhere(x: Tensor) -> torch.cuda.device | None:
    """The device of x, if it is a GPU and not the current one, on which Triton would start the kernel."""
    index = x.get_device()
    return torch.cuda.device(index) if index >= 0 and index != torch.cuda.current_device() else None


def start(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **options: int) -> bool:
    """The same in one call, where the arguments themselves say of which kind they are. Whether that kind was new."""
    elsewhere = _elsewhere(arguments[0])
    if elsewhere is not None:
        with elsewhere:
            return start(kernel, grid, *arguments, **options)
    key = (kernel, *[(x.dtype, x.data_ptr() & 15) if isinstance(x, torch.Tensor) else x for x in arguments])
    key = (*key, *options.values(), arguments[0].get_device())
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[grid](*arguments)
        return False
    if len(_compiled) >= MOST:
        _compiled.clear()
    _compiled[key] = kernel[grid](*arguments, **options)
    return True


def start_by_name(
    kernel: Any, grid: tuple[int, int, int], options: dict[str, Any], other: dict[str, Any] | None = None
) -> None:
    """`start` with the kernel's arguments by name; there may be more than it has.

    With `other` the kernel is compiled for these arguments too, where the kind is new: a later call may have them.
    """
    compiler = {name: options[name] for name in ("num_warps", "num_stages", "maxnreg") if name in options}
    new = start(kernel, grid, *[options[name] for name in kernel.arg_names], **compiler)
    if new and other is not None and arguments_on_gpu(options):
        kernel.warmup(*[(options | other)[name] for name in kernel.arg_names], grid=grid, **compiler)


def arguments_on_gpu(options: dict[str, Any]) -> bool:
    return any(isinstance(x, torch.Tensor) and x.is_cuda for x in options.values())


_compiled: dict[Hashable, Any] = {}

MOST = 4096
"""Kinds of arguments remembered before all are forgotten."""


def kind(x: Tensor | None) -> Hashable:
    """What Triton wants to know of a tensor, and what our kernels want to know of its shape."""
    return None if x is None else (x.dtype, x.data_ptr() & 15, x.shape, x.stride())


def dense_rows(x: Tensor) -> Tensor:
    """Rows of numbers that follow one another."""
    return x if x.stride(-1) == 1 else x.contiguous()


def leading_strides(*tensors: Tensor | None) -> tuple[int, ...]:
    """The leading two of each."""
    return tuple(s for x in tensors for s in ((0, 0) if x is None else x.stride()[:2]))


P = TypeVar("P")


def remember(plans: dict[Hashable, P], key: Hashable, plan: P) -> P:
    """Keep how one kind of call is run: one per length and layout, and a long generation has many lengths."""
    if len(plans) >= MOST:
        plans.clear()
    plans[key] = plan
    return plan


def with_descriptors(device: torch.device, start: Callable[[], object]) -> None:
    """Start a kernel that describes tensors to the copy engine, for which Triton asks its allocator for memory.

    In a context of its own: the caller's allocator stays what it was.
    """
    import triton

    def inside() -> None:
        triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=device))
        start()

    copy_context().run(inside)
