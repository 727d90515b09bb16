"""What torch.func and torch.compile can and cannot see, asked in one place."""

from __future__ import annotations

import torch


def transformed() -> bool:
    """Whether this runs inside torch.func.grad, vmap and their kin.

    They cannot checkpoint, nor see a gradient registered with torch.library.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None
