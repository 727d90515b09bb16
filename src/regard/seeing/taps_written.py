"""The tap of attention that a module writes out: a softmax, and the product with values that follows it.

    w = softmax(e),  z_i = Σ_j w_ij v_j

Names do not decide: a softmax is attention if its result is multiplied with values and summed over the same axis, by a
product of matrices, by einsum, or by `*` and `sum`. The weights are those that the softmax returned: the model has just
made them, and they are held by reference as a whole matrix. Values and output are those of the product.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from ..attention.energy_matrix import EnergyMatrix
from ..attention.normalizers import Unchanged
from ..attention.parts import ChangedInPlaceError, TensorVersions, version_of
from .call import Call
from .generation_passes import IN_ITS_OWN_CODE
from .watch import (
    Replacement,
    Tap,
    ablations_of,
    called_by_regard,
    calling_module,
    failure,
    local,
    opened,
    report,
    report_missed,
    suspend_reports,
    when_softmax_waits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor, nn

ATTENTION_NAME = re.compile(r"(attn|attention|\batt|_att)\d*\b.* |.* \S*(attn|attention|\batt_|_att\b)")
"""A name that ends in attention ("self_attn", not "attn_norm"), or a class whose name has it somewhere."""
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "nheads", "num_attn_heads")
"""Attributes by which modules state their number of heads."""
MOST = 8
"""Softmaxes of one thread that may wait for their product at a time."""
MULTIPLICATIONS = 32
"""Tensors that may be multiplied one by one between a softmax and the sum with its values."""


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
        own, other, keys = self.axes[side], self.axes[1 - side], self.contracted(side)
        lead, queries, width = _roles(own, other, self.out_axes)
        if not keys or not set(queries + width) <= set(self.out_axes):
            return None
        z = _arranged(self.out, self.out_axes, lead, queries, width)
        w = _arranged(weights, own, lead, queries, keys)
        v = _arranged(self.operands[1 - side], other, lead, keys, width)
        batch = z.shape[:-2]
        return w.expand(*batch, *w.shape[-2:]), v.expand(*batch, *v.shape[-2:]), z


def _roles(own: str, other: str, out: str) -> tuple[str, str, str]:
    """The axes that weights and values share, those of the queries, and those of the values alone."""
    lead = "".join(x for x in own if x in other and x in out)
    return lead, "".join(x for x in own if x not in other), "".join(x for x in other if x not in own)


def _arranged(x: Tensor, axes: str, lead: str, rows: str, columns: str) -> Tensor:
    """[*lead, rows, columns], where `rows` and `columns` may each be any number of axes."""
    x = x.permute([axes.index(a) for a in lead + rows + columns])
    sizes, middle = x.shape, len(lead) + len(rows)
    shape = (*sizes[: len(lead)], sizes[len(lead) : middle].numel(), sizes[middle:].numel())
    return x if tuple(sizes) == shape else x.reshape(shape)


def matmul_product(a: Tensor, b: Tensor, out: Tensor) -> TensorProduct | None:
    """The product that `torch.matmul` computed; None if an operand is a vector."""
    if a.dim() < 2 or b.dim() < 2:
        return None
    lead = string.ascii_uppercase[: out.dim() - 2]
    if a.dim() != b.dim():  # axes that one operand lacks
        a, b = (x[(None,) * (out.dim() - x.dim())] for x in (a, b))
    return TensorProduct((a, b), (lead + "qk", lead + "kd"), out, lead + "qd")


def einsum_product(equation: str, a: Tensor, b: Tensor, out: Tensor) -> TensorProduct | None:
    """The product that `torch.einsum` computed; None for an equation with repeated axes or without an arrow."""
    sides, arrow, result = equation.replace(" ", "").partition("->")
    first, comma, second = sides.partition(",")
    if not arrow or not comma:
        return None
    if "..." in equation:
        spare = "".join(x for x in string.ascii_letters if x not in equation)
        counts = [x.dim() - len(axes.replace("...", "")) for x, axes in ((a, first), (b, second)) if "..." in axes]
        if len(set(counts)) != 1:  # one broadcasts
            return None
        first, second, result = (axes.replace("...", spare[: counts[0]]) for axes in (first, second, result))
    if any(len(set(axes)) != len(axes) for axes in (first, second, result)):
        return None
    return TensorProduct((a, b), (first, second), out, result)


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
    return TensorProduct((operands[0], operands[1]), (sides[0], sides[1]), out, letters.replace(letters[axis], ""))


def _dropout_between(x: Tensor, weights: Tensor) -> float | None:
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


def _head_count(module: nn.Module) -> int | None:
    """The number of heads that a module, or its configuration, declares."""
    for owner in (module, getattr(module, "config", None)):
        for name in HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int) and count > 0:
                return count
    return None


class Piece(NamedTuple):
    """The product of some keys' weights with their values."""

    first: int
    weights: Float[Tensor, "*batch q k"]
    v: Float[Tensor, "*batch k d"]
    out: Float[Tensor, "*batch q d"]
    dropout: float
    product: TensorProduct
    side: int
    """Which operand of the product the weights are."""


@dataclass(slots=True, eq=False)
class OpenSoftmax:
    """The result of a softmax, until its products with values are found.

    A module may multiply some keys at a time (BigBird's blocks), or leave out a sink. The outputs then add up.
    """

    weights: Tensor
    dim: int
    """The axis over which it was normalised: the keys."""
    module: nn.Module
    pieces: list[Piece] = field(default_factory=list)
    is_gate: bool = False
    """Whether its numbers were multiplied with others, one by one."""
    left: int = MULTIPLICATIONS
    _multiplied: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    """Results of such multiplications, with their version and both factors: their sum is a product."""
    _versions: TensorVersions = field(init=False)

    def __post_init__(self) -> None:
        self._versions = TensorVersions([self.weights])

    def may_be(self, x: Tensor) -> bool:
        """Whether x may hold these weights: a view of them, or as many numbers."""
        return x.numel() == self.weights.numel() or self._shares_weights(x)

    @property
    def complete(self) -> bool:
        """Whether the products found have all keys."""
        return sum(piece.weights.shape[-1] for piece in self.pieces) >= self.weights.shape[self.dim]

    def note_multiplied(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        """Note a product of numbers one by one. It is a gate, unless it is summed as well."""
        self.left -= 1
        if self.may_be(a) or self.may_be(b):
            self.is_gate = True
            self._multiplied[out] = version_of(out), a, b

    def product_of_sum(self, out: Tensor, x: Tensor, *args: Any, **options: Any) -> TensorProduct | None:
        """The product that `out`, the sum of x, is; None if x is no result of a multiplication that was noted."""
        version, a, b = self._multiplied.get(x, (None, None, None))
        product = None if a is None or version != version_of(x) else summed_product(a, b, out, *args, **options)
        if product is not None and self.weights.dim() > 3:
            first, second = map(set, product.axes)
            if first <= second or second <= first:  # every query has values of its own: points that it samples
                return None
        return product

    def add(self, product: TensorProduct) -> bool:
        """Add the product if one operand is what the softmax returned and the product sums over its axis."""
        for side in (0, 1):
            used = self._find(product.operands[side], product.axes[side], product.contracted(side))
            matrices = None if used is None else product.matrices(side, used[1])
            if used is None or matrices is None:
                continue
            piece = Piece(used[0], *matrices, used[2], product, side)
            first = self.pieces[0] if self.pieces else piece
            if piece.out.shape != first.out.shape or any(piece.first == x.first for x in self.pieces):
                return False  # another use of the same weights
            if self._versions.changed() and self.module.training:  # dropout in place; otherwise weights set to zero
                raise ChangedInPlaceError("the weights were changed in place between the softmax and the product")
            self.pieces.append(piece)
            return True
        return False

    def call(self) -> Call:
        """The call of the products found."""
        pieces = sorted(self.pieces, key=lambda piece: piece.first)
        w, v, out, dropout = pieces[0][1:5]
        if len(pieces) > 1:
            w = torch.cat([piece.weights for piece in pieces], dim=-1)
            v = torch.cat([piece.v for piece in pieces], dim=-2)
            out = torch.stack([piece.out for piece in pieces]).sum(0)
        lead = self._lead(w)
        if lead is not None:
            w, v, out = (x.unflatten(0, lead) for x in (w, v, out))
        return _call_of_weights(w, v, out, dropout, "they were computed in the module's own code")

    def report(self) -> None:
        """Report the products found.

        Where there are none, a module that is named attention is reported with its weights alone. A gate, whose numbers
        are multiplied one by one, and a softmax over one entry are named as unseen.
        """
        if self.pieces:
            one = len(self.pieces) == 1  # the output of several is a sum that no tensor of the model holds
            with suspend_reports():
                report(
                    self.call,
                    self.module,
                    output=self.pieces[0].product.out if one else None,
                    arrange=self.arrangement() if one else None,
                )
            return
        weights, heads = self.weights, _head_count(self.module)
        last, axes, entries = weights.dim() - 1, weights.dim(), weights.shape[self.dim]

        def is_attention(name: str) -> bool:
            return bool(ATTENTION_NAME.search(name.lower()))

        by_rows = self.dim == last and ((heads is None and axes in (3, 4)) or (axes == 4 and weights.shape[1] == heads))
        if by_rows and entries > 1 and not self.is_gate:
            v, out = (weights.new_empty(*weights.shape[:-2], n, 0) for n in (entries, weights.shape[-2]))
            reason = "no product with values was found after its softmax"
            report(lambda: _call_of_weights(weights, v, out, 0.0, reason), self.module, name_filter=is_attention)
            return
        report_missed(
            f"its softmax over {entries} entries, {list(weights.shape)}, is not followed by a product "
            "with values: weights over sampled points, or a gate",
            self.module,
            name_filter=is_attention,
        )

    def arrangement(self) -> Callable[[Tensor], Tensor]:
        """From the gradient of the product's output to that of W·v.

        Part of a hook of the output's graph: it holds no tensor, which would keep that graph alive for ever.
        """
        (piece,) = self.pieces
        axes = piece.product.out_axes
        roles = _roles(piece.product.axes[piece.side], piece.product.axes[1 - piece.side], axes)
        lead = self._lead(piece.weights)

        def arrange(g: Tensor) -> Tensor:
            g = _arranged(g, axes, *roles)
            return g if lead is None else g.unflatten(0, lead)

        return arrange

    def head_axis(self) -> tuple[int, int] | None:
        """Where the heads are in the output of the last product found, and how many; None if it has no such axis.

        A product may have merged them with the batch, [B · heads, T, D].
        """
        piece = self.pieces[-1]
        out = piece.product.out_axes
        lead, _, _ = _roles(piece.product.axes[piece.side], piece.product.axes[1 - piece.side], out)
        merged = self._lead(piece.weights)
        if not lead or (len(lead) == 1 and merged is None):
            return None
        axis = out.index(lead[-1])
        return axis, piece.product.out.shape[axis] if merged is None else merged[-1]

    def _shares_weights(self, x: Tensor) -> bool:
        return bool(x.untyped_storage()._cdata == self.weights.untyped_storage()._cdata)

    def _find(self, x: Tensor, axes: str, keys: str) -> tuple[int, Tensor, float] | None:
        """The first key, the weights in the order of x, and the dropout after them; None if x is something else."""
        if not keys:
            return None
        weights, dim, last = self.weights, self.dim, axes.index(keys[-1])
        count = torch.Size(x.shape[axes.index(axis)] for axis in keys).numel()
        if self._shares_weights(x):
            stride = weights.stride(dim)
            if (x.stride(last) != stride and x.shape[last] > 1) or count > weights.shape[dim]:
                return None
            first = 0 if count == weights.shape[dim] else (x.storage_offset() - weights.storage_offset()) // stride
            return first % weights.shape[dim], x, 0.0
        if x.numel() != weights.numel() or count != weights.shape[dim]:
            return None
        if weights.shape == x.shape and dim == last:
            order = weights
        elif dim == weights.dim() - 1 and axes.endswith(keys):
            order = weights.reshape(x.shape)
        elif dim == weights.dim() - 1 and weights.mT.shape == x.shape:
            order = weights.mT
        else:
            return None
        dropout = _dropout_between(x, order)
        return None if dropout is None else (0, order if dropout else x, dropout)

    def _lead(self, w: Tensor) -> tuple[int, ...] | None:
        """The leading axes that a product merged: those the softmax had, or [B, heads] by the number of heads."""
        lead, heads = tuple(self.weights.shape[:-2]), _head_count(self.module)
        if w.dim() != 3:
            return None
        if len(lead) > 1 and self.weights.shape[-2] == w.shape[-2] and torch.Size(lead).numel() == w.shape[0]:
            return lead
        return (w.shape[0] // heads, heads) if heads is not None and heads > 1 and w.shape[0] % heads == 0 else None


def _call_of_weights(w: Tensor, v: Tensor, out: Tensor, dropout: float, reason: str) -> Call:
    return Call(
        out,
        energies=EnergyMatrix.of_matrix(w.detach()),
        v=v,
        normalize=Unchanged(),
        origin=IN_ITS_OWN_CODE,
        dropout=dropout,
        matrix=reason,
    )


def _softmax(
    original: Callable[..., Tensor], input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    state = local.state
    with suspend_reports():  # F.softmax may call the others
        weights = original(input, dim, *args, **kwargs)
    if called_by_regard():  # attend reports its own calls
        return weights
    if state.interface_call is not None:
        state.interface_call.weights = weights
        return weights
    if not (opened.watches or opened.ablations) or dim is None or weights.dim() < 2 or weights.is_nested:
        return weights
    module = calling_module()
    if module is not None:
        waiting = state.softmaxes
        for softmax in [x for x in waiting if x.pieces]:  # all of its products that there are
            waiting.remove(softmax)
            softmax.report()
        if len(waiting) == MOST:
            waiting.pop(0).report()
        waiting.append(OpenSoftmax(weights, dim % weights.dim(), module))
    return weights


def _matmul(original: Callable[..., Tensor], input: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    with suspend_reports():  # a mode of PyTorch may call the replaced one again inside it
        out = original(input, other, *args, **kwargs)
    if isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor):
        return _found(lambda: matmul_product(input, other, out), out, input, other)
    return out


def _reflected(original: Callable[..., Tensor], input: Tensor, other: Tensor) -> Tensor:
    return _matmul(lambda a, b: original(b, a), other, input)


def _einsum(original: Callable[..., Tensor], *args: Any) -> Tensor:
    with suspend_reports():
        out = original(*args)
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if isinstance(args[0], str) and len(operands) == 2:
        a, b = operands
        return _found(lambda: einsum_product(args[0], a, b, out), out, a, b)
    return out


def _multiply(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    out, softmax = original(*args, **kwargs), local.state.softmaxes[-1]
    if softmax.left and all(type(x) is torch.Tensor for x in (*args, out)) and len(args) == 2:
        softmax.note_multiplied(out, *args)
    return out


def _sum(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    out = original(*args, **kwargs)
    if not args or type(args[0]) is not torch.Tensor:
        return out
    softmax = local.state.softmaxes[-1]
    with torch.no_grad(), suspend_reports():
        product = softmax.product_of_sum(out, *args, **kwargs)
    found = None if product is None else _found(lambda: product, product.out, *product.operands)
    # Without ablated heads it is another tensor.
    return out if product is None or found is None or found is product.out else found.reshape(out.shape)


def _found(make: Callable[[], TensorProduct | None], out: Tensor, *operands: Tensor) -> Tensor:
    """Report the product if one of its operands is the result of a softmax that waits for it.

    Returns its output, without the heads that an ablation silences.
    """
    waiting = local.state.softmaxes
    try:
        with torch.no_grad(), suspend_reports():
            if not any(softmax.may_be(x) for softmax in waiting for x in operands):
                return out
            product = make()
            softmax = None if product is None else next((x for x in reversed(waiting) if x.add(product)), None)
    except ChangedInPlaceError as error:
        report_missed(str(error))
        return out
    except Exception as error:  # an error of ours must not stop the model
        report_missed(failure(error))
        return out
    if softmax is None:
        return out
    ablated = _ablated(softmax, out) if opened.ablations else out
    if softmax.complete:
        waiting.remove(softmax)
        softmax.report()
    return ablated


def _ablated(softmax: OpenSoftmax, out: Tensor) -> Tensor:
    """The output of the last product of a softmax, with ablated heads set to zero."""
    axis, w = softmax.head_axis(), softmax.pieces[-1].weights
    for ablation, name in ablations_of(softmax.module):
        ablation.check_written_out(name, w.shape[-2], softmax.weights.shape[softmax.dim], axis is not None)
        if axis is not None:
            out = ablation.output(name, out, *axis)
    return out


MULTIPLIES: list[tuple[Callable[..., Any], list[tuple[Any, str]]]] = [
    (_matmul, [(torch, "matmul"), (torch, "bmm")]),
    (_matmul, [(torch.Tensor, "matmul"), (torch.Tensor, "bmm"), (torch.Tensor, "__matmul__")]),
    (_reflected, [(torch.Tensor, "__rmatmul__")]),
    (_einsum, [(torch, "einsum")]),
    (_multiply, [(torch, "mul"), (torch.Tensor, "mul"), (torch.Tensor, "__mul__"), (torch.Tensor, "__rmul__")]),
    (_sum, [(torch, "sum"), (torch.Tensor, "sum")]),
]
TAP = Tap(
    "a softmax followed by a product with values",
    [
        *(Replacement(owner, "softmax", _softmax) for owner in (F, torch, torch.Tensor)),
        *(Replacement(*place, tap, when_softmax_waits) for tap, places in MULTIPLIES for place in places),
    ],
)
