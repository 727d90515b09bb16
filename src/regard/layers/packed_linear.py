"""Matrices packed for repeated products: a search multiplies a few rows with the same weights at every step.

On a CPU oneDNN stores such a matrix in the order in which its kernel reads it. A product with 5 rows then takes less
than half as long, one with 160 rows about a tenth less. Packing a matrix takes about as long as a product with 50 rows.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..attention.torch_transforms import plain, traced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float
    from torch import Tensor

# PyTorch's compiler uses these operators. A build of PyTorch without oneDNN lacks them.
_pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_linear = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


def pack(matrix: Float[Tensor, "out in"]) -> Tensor | None:
    """The matrix in oneDNN's order, for `product`; None where that is not possible."""
    if _pack is None or _linear is None or not torch.backends.mkldnn.enabled:
        return None
    if matrix.device.type != "cpu" or matrix.dtype != torch.float32 or matrix.dim() != 2 or 0 in matrix.shape:
        return None
    if traced() or not plain(matrix) or torch._C._len_torch_function_stack():
        return None
    packed: Tensor = _pack(matrix.detach())
    return packed


def product(
    x: Float[Tensor, "*rows in"], packed: Tensor, bias: Float[Tensor, "out"] | None
) -> Float[Tensor, "*rows out"]:
    """x Mᵀ + b, of a matrix M that was packed. It has no derivative."""
    y: Tensor = _linear(x, packed, bias, "none", [], "")  # type: ignore[misc]
    return y


class Linear(nn.Linear):
    """`nn.Linear`, which multiplies with a packed copy of its matrix inside `packed_weights`."""

    _packed: Tensor | None = None
    _users = 0  # blocks of `packed_weights` that run now, in all threads

    def forward(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        if self._users and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and plain(x):
            packed = self._packed
            if packed is None:
                packed = self._packed = pack(self.weight)
            if packed is not None:
                return product(x, packed, self.bias)
        return super().forward(x)


_lock = Lock()


@contextmanager
def packed_weights(*modules: nn.Module) -> Iterator[None]:
    """While the block runs, every `Linear` of these modules uses a packed copy of its matrix.

    A copy is made at the first use and dropped at the end of the block; the weights must not change meanwhile.
    """
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, Linear)]
    with _lock:
        for layer in layers:
            layer._users += 1
    try:
        yield
    finally:
        with _lock:
            for layer in layers:
                layer._users -= 1
                if layer._users == 0:
                    layer._packed = None
