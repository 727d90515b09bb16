"""Starting a Triton kernel: on the device of its tensors."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch


def start(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **options: int) -> None:
    """`kernel[grid](*arguments, **options)` on the device of the first tensor, which need not be the current one."""
    device = next(x.device for x in arguments if isinstance(x, torch.Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*arguments, **options)


def start_by_name(kernel: Any, grid: tuple[int, int, int], options: dict[str, Any]) -> None:
    """`start` with the kernel's arguments by name; there may be more than it has."""
    compiler = {name: options[name] for name in ("num_warps", "num_stages", "maxnreg") if name in options}
    start(kernel, grid, *[options[name] for name in kernel.arg_names], **compiler)
