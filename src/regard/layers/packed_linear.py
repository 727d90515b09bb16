"""Matrices packed for repeated products: a search multiplies a few rows with the same weights at every step.

On a CPU oneDNN stores such a matrix in the order in which its kernel reads it. A product of a large matrix with 5 rows
then takes less than half as long, one with 160 rows about a tenth less. Packing a matrix takes about as long as a
product with 50 rows. Small products are slower packed: `pays` has the limits.

oneDNN compiles a kernel for each number of rows and each shape of a matrix, about 0.6 MB, and keeps 1024 of them.
`product` rounds the number of rows up, so a server needs few kernels however many rows its requests have.
`python -m benchmarks.packed_products` measures both.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..attention.torch_transforms import global_hooks, plain, traced, transformed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float

# PyTorch's compiler uses these operators. A build of PyTorch without oneDNN lacks them.
_pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_linear = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
_has_bfloat16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)

SMALLEST_MATRIX = 3 * 2**16
"""Elements of a matrix that is packed. A product with 256 × 256 takes longer packed, with 768 × 256 it does not."""
SMALLEST_PRODUCT = 2**19
"""Multiplications of a product that is packed: calling oneDNN takes about 10 μs more than calling the BLAS library."""


def pays(rows: int, matrix: Tensor) -> bool:
    """Whether a product of so many rows with this matrix is faster packed."""
    return matrix.numel() >= SMALLEST_MATRIX and rows * matrix.numel() >= SMALLEST_PRODUCT


def _has_kernel(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies numbers of this dtype on this CPU."""
    if dtype == torch.bfloat16:
        return _has_bfloat16 is not None and bool(_has_bfloat16())
    return dtype == torch.float32


def pack(matrix: Float[Tensor, "out in"]) -> Tensor | None:
    """The matrix in oneDNN's order, for `product`; None where that is not possible."""
    if _pack is None or _linear is None or not torch.backends.mkldnn.enabled:
        return None
    if matrix.device.type != "cpu" or not _has_kernel(matrix.dtype) or matrix.dim() != 2 or 0 in matrix.shape:
        return None
    if traced() or not plain(matrix) or torch._C._len_torch_function_stack():
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


class _PackedMatrix:
    """The copy of a layer's matrix, made at the first use, and again after the matrix was changed.

    It is packed where `pack` can. Under autocast it has autocast's dtype, so a matrix is converted once and not at
    every step.
    """

    def __init__(self) -> None:
        self._source: Tensor | None = None
        self._version = 0
        self._copy: Tensor | None = None  # in the dtype of the products
        self._packed: Tensor | None = None

    def product(
        self, x: Float[Tensor, "*rows in"], matrix: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None
    ) -> Float[Tensor, "*rows out"] | None:
        """x Mᵀ + b in the dtype of x; None where neither packing nor the conversion saves time."""
        if matrix.is_inference():  # changes of it are not counted
            return None
        packs = pays(prod(x.shape[:-1]), matrix)
        if not packs and x.dtype == matrix.dtype:
            return None
        source, copy = self._source, self._copy
        changed = source is None or source.data_ptr() != matrix.data_ptr() or self._version != matrix._version
        if changed or copy is None or copy.dtype != x.dtype:
            # The source is held: no other matrix gets its address.
            self._source, self._version, self._packed = matrix.detach(), matrix._version, None
            self._copy = copy = self._source.to(x.dtype)
        if packs and self._packed is None:
            self._packed = pack(copy)
        bias = None if bias is None else bias.to(x.dtype)
        if packs and self._packed is not None:
            return product(x, self._packed, bias)
        if x.dtype == matrix.dtype:
            return None
        return nn.functional.linear(x, copy, bias)


_blocks: ContextVar[dict[nn.Linear, _PackedMatrix] | None] = ContextVar("packed_weights", default=None)


@contextmanager
def packed_weights(*modules: nn.Module) -> Iterator[None]:
    """While the block runs, `linear` multiplies with packed copies of the matrices of these modules, in this thread.

    The copies belong to the block, and the modules do not refer to them. Changes of a matrix that PyTorch's version
    counter counts are noticed; in a block a matrix must not be changed through its `.data`.
    """
    outer = _blocks.get() or {}
    layers = (layer for module in modules for layer in module.modules() if type(layer) is nn.Linear)
    token = _blocks.set(outer | {layer: _PackedMatrix() for layer in layers if layer not in outer})
    try:
        yield
    finally:
        _blocks.reset(token)


def linear(layer: nn.Linear, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
    """layer(x), by the packed copy of its matrix where a block of `packed_weights` has one and that is faster.

    A layer with hooks, gradients, and other dtypes or widths than the matrix has are left to the layer itself.
    """
    y = None if torch.compiler.is_compiling() else _packed_product(layer, x)
    return layer(x) if y is None else y


def _packed_product(layer: nn.Linear, x: Tensor) -> Tensor | None:
    block = _blocks.get()
    matrix = None if block is None else block.get(layer)
    if matrix is None or torch.is_grad_enabled() or transformed():
        return None
    if layer._forward_hooks or layer._forward_pre_hooks or global_hooks() or "forward" in vars(layer):
        return None
    weight = layer.weight
    if torch._C._len_torch_function_stack() or not plain(x, weight):
        return None
    if x.device.type != "cpu" or x.device != weight.device or x.dim() == 0 or x.shape[-1] != weight.shape[-1]:
        return None
    if torch.is_autocast_enabled("cpu"):
        if not _lowered(x, weight):
            return None
        with torch.autocast("cpu", enabled=False):
            return matrix.product(x.to(torch.get_autocast_dtype("cpu")), weight, layer.bias)
    return matrix.product(x, weight, layer.bias) if x.dtype == weight.dtype else None


def _lowered(*tensors: Tensor) -> bool:
    """Whether autocast converts all of them; it leaves float64 as it is."""
    return all(x.dtype in (torch.float32, torch.bfloat16, torch.float16) for x in tensors)
