"""Whether code runs inside torch.func, torch.compile or autocast."""

from __future__ import annotations

import torch
from torch._guards import detect_fake_mode


def transformed() -> bool:
    """Whether this runs inside a transform of torch.func (grad, vmap, …).

    There tensors cannot be read or checkpointed, and gradients registered with torch.library are ignored.
    """
    if torch.compiler.is_compiling():
        return False
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def traced() -> bool:
    """Whether tensors cannot be read: inside torch.compile, or a transform of torch.func."""
    return torch.compiler.is_compiling() or transformed()


def readable(x: torch.Tensor) -> bool:
    """Whether the numbers of a tensor are there to be read: not in a trace, of a fake tensor or on the meta device."""
    if traced() or x.device.type == "meta":
        return False
    return plain(x) or detect_fake_mode((x,)) is None


def plain(*tensors: torch.Tensor) -> bool:
    """Whether a kernel may be called without the dispatcher: nothing traces the call, observes it, or wraps tensors."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return {type(x) for x in tensors} <= _PLAIN


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def exact(device: torch.device) -> torch.autocast:
    """Autocast switched off: inputs were cast on the way in, and energies are held in float32 at least."""
    return torch.autocast(device.type if device.type in AUTOCAST else "cpu", enabled=False)


AUTOCAST = frozenset({"cpu", "cuda", "xpu", "mps"})
