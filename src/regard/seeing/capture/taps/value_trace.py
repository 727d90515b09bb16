"""ValueTrace: follows the weights of a softmax to their values, where a module multiplies and sums by itself.

(w · v).sum(dim) is the same product as `matmul`, in two functions. They are followed from a softmax to its product.
"""

from __future__ import annotations

import string
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ....attention.tensor_versions import version_of
from ..tensor_product import TensorProduct
from .function_mode import FollowingMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..written_attention import OpenSoftmax

FUNCTIONS = 32
"""Functions that may run between a softmax and its product with values, if that is none of matrices."""


class ValueTrace(FollowingMode):
    """`find` gets each product that is summed, and returns the output that the model goes on with."""

    def __init__(self, softmax: OpenSoftmax, find: Callable[[TensorProduct], Tensor | None]) -> None:
        super().__init__(FUNCTIONS)
        self._softmax: OpenSoftmax | None = softmax
        self._find = find
        self._products: dict[int, tuple[weakref.ref[Tensor], int | None, Tensor, Tensor]] = {}

    def finish(self) -> None:
        super().finish()
        self._softmax, self._products = None, {}

    def follow(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result, name = function(*args, **options), function.__name__
        softmax = self._softmax
        if softmax is not None and name == "mul" and len(args) == 2 and all(type(x) is torch.Tensor for x in args):
            if any(softmax.may_be(x) for x in args):
                softmax.is_gate = True  # unless it is summed as well
                self._products[id(result)] = weakref.ref(result), version_of(result), *args
        elif name == "sum" and args and id(args[0]) in self._products:
            reference, version, a, b = self._products[id(args[0])]
            followed = reference()
            is_same = followed is not None and followed is args[0] and version == version_of(followed)
            product = summed_product(a, b, result, *args[1:], **options) if is_same else None
            output = None if product is None else self._find(product)
            if output is not None and product is not None and output is not product.out:
                result = output.reshape(result.shape)  # without ablated heads
        return result


def summed_product(
    a: Tensor, b: Tensor, out: Tensor, dim: Any = None, keepdim: bool = False, **other: Any
) -> TensorProduct | None:
    """(a · b).sum(dim) as a product with letters; None if it sums over several axes or changes the type."""
    dims = max(a.dim(), b.dim())
    axis = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    if not isinstance(axis, int) or other or not dims:
        return None
    letters, axis = string.ascii_letters[:dims], axis % dims
    operands: list[Tensor] = []
    sides: list[str] = []
    full = tuple(torch.broadcast_shapes(a.shape, b.shape))
    for x in (a, b):
        x = x[(None,) * (dims - x.dim())]
        # An operand that is broadcast along an axis does not have it.
        own = [n > 1 or whole == 1 for n, whole in zip(x.shape, full, strict=True)]
        operands.append(x[tuple(slice(None) if has else 0 for has in own)])
        sides.append("".join(letter for letter, has in zip(letters, own, strict=True) if has))
    if letters[axis] not in sides[0] or letters[axis] not in sides[1]:
        return None
    out = out.squeeze(axis) if keepdim else out
    rest = letters.replace(letters[axis], "")
    return TensorProduct((operands[0], operands[1]), (sides[0], sides[1]), out, rest)
