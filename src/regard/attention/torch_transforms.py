"""What torch.func, torch.compile and autocast do to code inside them, asked in one place."""

from __future__ import annotations

import torch


def transformed() -> bool:
    """Whether this runs inside torch.func.grad, vmap and their kin.

    They cannot look at numbers, checkpoint, or see a gradient registered with torch.library.
    """
    if torch.compiler.is_compiling():
        return False
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def traced() -> bool:
    """Whether numbers cannot be looked at: inside torch.compile, or one of torch.func's transforms."""
    return torch.compiler.is_compiling() or transformed()


def plain(*tensors: torch.Tensor) -> bool:
    """Whether an operation on these may be run at once: nothing traces it, watches it, or wraps the tensors."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    kinds = {type(x) for x in tensors}
    return kinds <= _PLAIN


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def exact(device: torch.device) -> torch.autocast:
    """Autocast switched off: inputs were cast on the way in, and energies are held in float32 at least."""
    return torch.autocast(device.type if device.type in AUTOCAST else "cpu", enabled=False)


AUTOCAST = frozenset({"cpu", "cuda", "xpu", "mps"})
