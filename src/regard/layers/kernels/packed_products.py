"""Matrices packed by oneDNN for the time of a search, and dropout by 16-bit random numbers.

A search multiplies a few rows with the same weights at every step.

On a CPU oneDNN stores such a matrix in the order in which its kernel reads it. A product of a large matrix with 5 rows
then takes less than half as long. Packing a matrix takes about as long as a product with 50 rows, so an engine holds
the copies for all its searches. Small products are slower packed: `pays` has the limits.

oneDNN compiles a kernel for each number of rows and each shape of a matrix, about 0.6 MB, and keeps 1024 of them.
`product` rounds the number of rows up, so a server needs few kernels however many rows its requests have.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...attention.parts import global_hooks, plain, traced, transformed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float

STEPS = 1 << 16


class Dropout(nn.Dropout):
    """Each number is zero with probability p while training, and what is left is scaled by 1/(1 − p).

    (Srivastava et al. 2014.) On a CPU PyTorch draws 64 random bits for each decision, one number after the other, which
    shows in the training of a small Transformer. Here 16 bits decide, so p is rounded to a multiple of 1/65,536.
    """

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training:
            return x
        chance = round(self.p * STEPS)
        if x.device.type != "cpu" or not 0 < chance < STEPS or transformed():
            return super().forward(x)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
        keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= chance - STEPS // 2
        return x * keep.to(x.dtype).mul_(STEPS / (STEPS - chance))


# PyTorch's compiler uses these operators. A build of PyTorch without oneDNN lacks them.
_pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_linear = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
_has_bfloat16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)

SMALLEST_MATRIX = 2**16
"""Elements of a matrix that is packed."""
SMALLEST_PRODUCT = 2**18
"""Multiplications of a product that is packed: calling oneDNN takes about 10 μs more than calling the BLAS library."""


def pays(rows: int, matrix: Tensor) -> bool:
    """Whether a product of so many rows with this matrix is faster packed."""
    return matrix.numel() >= SMALLEST_MATRIX and rows * matrix.numel() >= SMALLEST_PRODUCT


def pack(matrix: Float[Tensor, "out in"]) -> Tensor | None:
    """The matrix in oneDNN's order, for `product`; None where that is not possible."""
    if _pack is None or _linear is None or not torch.backends.mkldnn.enabled:
        return None
    has_kernel = matrix.dtype == torch.float32 or (
        matrix.dtype == torch.bfloat16 and _has_bfloat16 is not None and bool(_has_bfloat16())
    )
    if not has_kernel or matrix.device.type != "cpu" or matrix.dim() != 2 or 0 in matrix.shape or not plain(matrix):
        return None
    packed: Tensor = _pack(matrix.detach())
    return packed


def product(
    x: Float[Tensor, "*rows in"], packed: Tensor, bias: Float[Tensor, "out"] | None
) -> Float[Tensor, "*rows out"]:
    """x Mᵀ + b, of a matrix M that was packed. It has no derivative."""
    rows = prod(x.shape[:-1])
    extra = kernel_rows(rows) - rows
    padded = pad(x.reshape(rows, -1), (0, 0, 0, extra)) if extra else x
    y: Tensor = _linear(padded, packed, bias, "none", [], "")  # type: ignore[misc]
    return y[:rows].reshape(*x.shape[:-1], -1) if extra else y


def kernel_rows(rows: int) -> int:
    """Rows of the kernel that multiplies this many: up to 8 as many, then four numbers for each power of two.

    These are 25 numbers for up to 160 rows, and 37 for up to 1,280.
    """
    step = max(1, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step


Copies = dict[Tensor, tuple[int, int, Tensor | None]]
"""By matrix: where its numbers are, how often they changed, and the packed copy (None where it cannot be packed)."""
_copies: ContextVar[Copies | None] = ContextVar("packed_weights", default=None)


@contextmanager
def packed_weights(held: Copies | None = None) -> Iterator[None]:
    """While the block runs, in this thread, `linear` and `multiply` use copies of matrices, packed at their first use.

    The block of a search: the weights must not change in it. With `held` the copies stay there for the next block, of
    weights that have not changed since, as far as PyTorch counts it (what is done to `.data` it does not count).
    """
    copies = _copies.get() if held is None else held
    copies = {} if copies is None else copies
    for matrix, (*before, _) in list(copies.items()):  # other threads may add to it
        if before != _state(matrix):
            copies.pop(matrix, None)
    watched = traced() or torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    token = _copies.set(None if watched else copies)
    try:
        yield
    finally:
        _copies.reset(token)


def _state(matrix: Tensor) -> list[int]:
    return [matrix.data_ptr(), -1 if matrix.is_inference() else matrix._version]


def linear(layer: nn.Linear, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
    """layer(x). Where somebody observes or replaces the layer's call, it is called; else it is its product."""
    plainly = type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks or global_hooks())
    if _copies.get() is None or not plainly or "forward" in vars(layer):
        return layer(x)  # type: ignore[no-any-return]
    return multiply(x, layer.weight, layer.bias)


def multiply(
    x: Float[Tensor, "*rows in"], matrix: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None
) -> Float[Tensor, "*rows out"]:
    """x Mᵀ + b; inside `packed_weights` by a packed copy of M, where that is faster."""
    copies = _copies.get()
    width = matrix.shape[1]
    if copies is not None and type(x) is Tensor and x.shape[-1] == width and pays(x.numel() // (width or 1), matrix):
        packed = _packed(copies, matrix)
        alike = packed is not None and x.dtype == matrix.dtype and x.device == matrix.device
        if packed is not None and alike and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            return product(x, packed, bias)
    return nn.functional.linear(x, matrix, bias)


def _packed(copies: Copies, matrix: Tensor) -> Tensor | None:
    if matrix not in copies:
        copies[matrix] = (*_state(matrix), pack(matrix))  # type: ignore[assignment]
    return copies[matrix][2]
