"""TensorProduct: the product of weights with values, as matrices, whatever the order of its axes was."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class TensorProduct(NamedTuple):
    """A product of two tensors with one letter for each axis, as in einsum."""

    operands: tuple[Tensor, Tensor]
    axes: tuple[str, str]
    out: Tensor
    out_axes: str

    def contracted(self, side: int) -> str:
        """The axes of an operand over which the product sums, in its order."""
        return "".join(x for x in self.axes[side] if x in self.axes[1 - side] and x not in self.out_axes)

    def matrices(
        self, side: int, weights: Tensor
    ) -> tuple[Float[Tensor, "*batch q k"], Float[Tensor, "*batch k d"], Float[Tensor, "*batch q d"]] | None:
        """Weights, values and output as matrices; `weights` has the axes of operand `side`.

        None for a product that has no such form: an axis of one operand alone is summed.
        """
        own, other, out = self.axes[side], self.axes[1 - side], self.out_axes
        keys = self.contracted(side)
        lead = [x for x in own if x in other and x in out]
        queries = [x for x in own if x not in other]
        width = [x for x in other if x not in own]
        if not keys or not set(queries + width) <= set(out):
            return None
        w = _arranged(weights, own, lead, queries, keys)
        v = _arranged(self.operands[1 - side], other, lead, keys, width)
        z = _arranged(self.out, out, lead, queries, width)
        batch = z.shape[:-2]
        return w.expand(*batch, *w.shape[-2:]), v.expand(*batch, *v.shape[-2:]), z


def _arranged(x: Tensor, axes: str, lead: list[str], rows: list[str] | str, columns: list[str] | str) -> Tensor:
    """[*lead, rows, columns], where `rows` and `columns` may each be any number of axes."""
    x = x.permute([axes.index(a) for a in (*lead, *rows, *columns)])
    sizes = x.shape
    middle = len(lead) + len(rows)
    shape = (*sizes[: len(lead)], sizes[len(lead) : middle].numel(), sizes[middle:].numel())
    return x if tuple(sizes) == shape else x.reshape(shape)


def output_matrix(x: Tensor, own: str, other: str, out: str) -> Float[Tensor, "*batch q d"]:
    """A tensor with the axes `out` of a product, as `TensorProduct.matrices` arranges the output.

    `own` are the axes of the weights, `other` those of the values.
    """
    lead = [a for a in own if a in other and a in out]
    return _arranged(x, out, lead, [a for a in own if a not in other], [a for a in other if a not in own])


def matmul_product(a: Tensor, b: Tensor, out: Tensor) -> TensorProduct | None:
    """The product that `torch.matmul` computed; None if an operand is a vector."""
    if a.dim() < 2 or b.dim() < 2:
        return None
    lead = string.ascii_uppercase[: out.dim() - 2]
    sides = (lead[len(lead) - a.dim() + 2 :] + "qk", lead[len(lead) - b.dim() + 2 :] + "kd")
    if a.dim() != b.dim():  # axes that one operand lacks
        a = a[(None,) * (out.dim() - a.dim())]
        b = b[(None,) * (out.dim() - b.dim())]
        sides = (lead + "qk", lead + "kd")
    return TensorProduct((a, b), sides, out, lead + "qd")


def einsum_product(equation: str, a: Tensor, b: Tensor, out: Tensor) -> TensorProduct | None:
    """The product that `torch.einsum` computed; None for an equation with repeated axes or without an arrow."""
    sides, arrow, result = equation.replace(" ", "").partition("->")
    first, comma, second = sides.partition(",")
    if not arrow or not comma:
        return None
    if "..." in equation:
        spare = [x for x in string.ascii_letters if x not in equation]
        count = max(x.dim() - len(axes.replace("...", "")) for x, axes in ((a, first), (b, second)) if "..." in axes)
        dots = "".join(spare[:count])
        own = [dots[count - (x.dim() - len(axes.replace("...", ""))) :] for x, axes in ((a, first), (b, second))]
        if any("..." in axes and len(part) != count for part, axes in zip(own, (first, second), strict=True)):
            return None
        first, second, result = (axes.replace("...", dots) for axes in (first, second, result))
    if any(len(set(axes)) != len(axes) for axes in (first, second, result)):
        return None
    return TensorProduct((a, b), (first, second), out, result)


def same_values(x: Tensor, weights: Tensor) -> float | None:
    """The dropout after which `weights`, in the order of x and of its type, are x: 0 if they are equal, None if not."""
    w = weights.to(x.dtype)
    if torch.equal(x, w):
        return 0.0
    kept = x != 0
    if not bool(kept.any()) or bool(kept.all()):
        return None
    ratio = x[kept].float() / w[kept].float()
    scale = ratio.median()
    rounding = 0.05 if x.dtype in (torch.float16, torch.bfloat16) else 1e-3
    if not bool(scale > 1) or bool(((ratio - scale).abs() > rounding * scale).any()):
        return None
    return float(1 - 1 / scale)
