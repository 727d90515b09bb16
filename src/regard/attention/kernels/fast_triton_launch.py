"""Starting a Triton kernel: on the device of its tensors, by name, or with memory for descriptors."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def start(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **options: int) -> None:
    """`kernel[grid](*arguments, **options)` on the device of the first tensor, which need not be the current one."""
    device = next(x.device for x in arguments if isinstance(x, torch.Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*arguments, **options)


def start_by_name(kernel: Any, grid: tuple[int, int, int], options: dict[str, Any]) -> None:
    """`start` with the kernel's arguments by name; there may be more than it has."""
    compiler = {name: options[name] for name in ("num_warps", "num_stages", "maxnreg") if name in options}
    start(kernel, grid, *[options[name] for name in kernel.arg_names], **compiler)


def with_descriptors(device: torch.device, start: Callable[[], object]) -> None:
    """Start a kernel that describes tensors to the copy engine, for which Triton asks its allocator for memory.

    In a context of its own: the caller's allocator stays what it was.
    """
    import triton

    def inside() -> None:
        triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=device))
        start()

    copy_context().run(inside)
