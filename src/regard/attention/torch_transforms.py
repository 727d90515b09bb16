"""Whether code runs inside torch.func, torch.compile or autocast, and how often a kernel is differentiated."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import detect_fake_mode

if TYPE_CHECKING:
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


def forward_mode() -> bool:
    """Whether directional derivatives are computed: inside torch.func.jvp, jacfwd, hessian or forward_ad.dual_level."""
    return torch.autograd.forward_ad._current_level >= 0


def no_kernel() -> str | None:
    """Why no kernel can be used: kernels are differentiated once, and backward; None where that is enough."""
    if forward_mode() or transformed():
        return 'torch.func and forward mode differentiate the formula alone, backend="reference"'
    return None


def differentiated_once(out: torch.Tensor) -> torch.Tensor:
    """`out`, what a kernel computed: a graph of its gradient (create_graph=True) is refused, with the way round."""
    if not out.requires_grad or traced():
        return out
    return _Once.apply(out)  # type: ignore[no-any-return]


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "the kernels of attention are differentiated once; for second derivatives (create_graph=True) use "
                'attend(..., backend="reference")'
            )
        return grad


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
