"""Whether code runs inside torch.func, torch.compile or autocast."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch._guards import detect_fake_mode

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_any_global_hook = getattr(torch.nn.modules.module, "_has_any_global_hook", None)  # private to PyTorch


def transformed() -> bool:
    """Whether this runs inside a transform of torch.func (grad, vmap, …).

    There tensors cannot be read or checkpointed, and gradients registered with torch.library are ignored.
    """
    if torch.compiler.is_compiling():
        return False
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def global_hooks() -> bool:
    """Whether a hook was registered for the calls of all modules."""
    return _any_global_hook is None or _any_global_hook()


def batched(x: torch.Tensor) -> bool:
    """Whether a tensor stands for several: inside torch.vmap, or a backward with `is_grads_batched=True`."""
    return torch._C._functorch.is_batchedtensor(x) or torch._C._functorch.is_legacy_batchedtensor(x)


def forward_mode() -> bool:
    """Whether directional derivatives are computed: inside torch.func.jvp, jacfwd, hessian or forward_ad.dual_level."""
    return torch.autograd.forward_ad._current_level >= 0


def derivative_levels(*tensors: torch.Tensor) -> int:
    """How many derivatives are taken of what is computed from these tensors: 2 inside grad(grad(f)) or hessian(f).

    Each of torch.func's derivatives that encloses the call counts once, and so does autograd around all of them.
    """
    stack = torch._C._functorch.get_interpreter_stack() if transformed() else None
    if not stack:
        return int(torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
    levels = {x.level() for x in stack if x.key() in _DERIVATIVES}
    return len({level for x in tensors for level in _levels_of(x)} & (levels | {0}))


def _levels_of(x: torch.Tensor) -> set[int]:
    levels = set()
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        levels.add(torch._C._functorch.maybe_get_level(x))
        x = torch._C._functorch.get_unwrapped(x)
    return levels | ({0} if x.requires_grad else set())


_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def no_kernel(tensors: Callable[[], list[torch.Tensor]]) -> str | None:
    """Why a kernel with a first derivative and no other one cannot be used; None if it can.

    The tensors are asked for only inside a transform: listing them takes a good part of a small call.
    """
    if forward_mode():
        return "it has no forward-mode derivative"
    if transformed() and derivative_levels(*tensors()) > 1:
        return "it has no second derivative"
    return None


def traced() -> bool:
    """Whether tensors cannot be read: inside torch.compile, or a transform of torch.func."""
    return torch.compiler.is_compiling() or transformed()


def is_known(condition: bool | torch.SymBool) -> bool:
    """Whether a comparison of sizes is true for all sizes that a trace stands for; the trace gets no condition."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports a compiler

    return statically_known_true(condition)


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


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off: inputs were cast on the way in, and energies are held in float32 at least."""
    if not torch.compiler.is_compiling() and device.type in AUTOCAST and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type if device.type in AUTOCAST else "cpu", enabled=False)


AUTOCAST = frozenset({"cpu", "cuda", "xpu", "mps"})
