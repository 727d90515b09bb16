"""The tap of attention that a module writes out: a softmax, and the product with values that follows it.

    w = softmax(e),  z_i = Σ_j w_ij v_j

Names do not decide: a softmax is attention if its result is multiplied with values and summed over the same axis, by a
product of matrices, by einsum, or by `*` and `sum`. The weights are held by reference as a whole matrix: those that the
softmax returned, or those that were made of them (mixed between heads, set to zero, divided by their sum), if these
are what multiplied the values. Values and output are those of the product. A module may multiply a slice at a time: one
head, one entry of the batch, one query, some keys.

A sum with one column is a statistic (the sum of the weights, their mean place) until nothing else is found.
"""

from __future__ import annotations

import functools
import re
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from ..attention.energy_matrix import EnergyMatrix
from ..attention.normalizers import Unchanged
from ..attention.parts import ChangedInPlaceError
from .call import Call
from .generation_passes import IN_ITS_OWN_CODE
from .watch import (
    Replacement,
    Tap,
    ablations_of,
    called_by_regard,
    calling_module,
    failure,
    is_active,
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
        self, side: int, weights: Tensor, heads: int | None = None
    ) -> tuple[Float[Tensor, "*batch q k"], Float[Tensor, "*batch k d"], Float[Tensor, "*batch q d"]] | None:
        """Weights, values and output as matrices; `weights` has the axes of operand `side`.

        None for a product that has no such form: an axis of one operand alone is summed. An axis of so many `heads`
        that the values lack is one of heads that share their keys and values (Shazeer 2019).
        """
        own, other, keys = self.axes[side], self.axes[1 - side], self.contracted(side)
        lead, queries, width = _roles(own, other, self.out_axes)
        if not keys or not set(queries + width) <= set(self.out_axes):
            return None
        v = _arranged(self.operands[1 - side], other, lead, keys, width)
        if len(queries) > 1 and weights.shape[own.index(queries[0])] == heads:
            lead, queries, v = lead + queries[0], queries[1:], v.unsqueeze(-3)
        z = _arranged(self.out, self.out_axes, lead, queries, width)
        w = _arranged(weights, own, lead, queries, keys)
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


def _head_count(module: nn.Module) -> int | None:
    """The number of heads that a module, or its configuration, declares."""
    for owner in (module, getattr(module, "config", None)):
        for name in HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int) and count > 0:
                return count
    return None


class Layout(NamedTuple):
    """How a tensor lies in memory, [*lead, tokens, width]."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def is_adjacent(self, axis: int) -> bool:
        """Whether entries along this axis are next to each other in the features of one token."""
        stride, size = self.strides[axis], self.shape[axis]
        return size > 1 and stride == self.shape[-1] * self.strides[-1] and self.strides[-2] >= size * stride


Place = tuple[slice, ...]
"""Where a slice lies in the result of a softmax: one slice for each of its axes."""


class Piece(NamedTuple):
    """The product of weights, or of a slice of them, with their values."""

    place: Place | None
    """None for all of them."""
    weights: Float[Tensor, "*batch q k"]
    v: Float[Tensor, "*batch k d"]
    out: Float[Tensor, "*batch q d"]
    dropout: float
    product: TensorProduct
    side: int
    """Which operand of the product the weights are."""

    @property
    def is_statistic(self) -> bool:
        """Whether it has one column."""
        return self.v.shape[-1] == 1


@dataclass(slots=True, eq=False)
class OpenSoftmax:
    """The result of a softmax, until its products with values are found.

    A module may multiply some keys at a time (BigBird's blocks), whose outputs then add up, or leave out a sink; or
    some queries, heads or entries, which lie beside each other.
    """

    weights: Tensor
    dim: int
    """The axis over which it was normalised: the keys."""
    module: nn.Module
    before: Layout | None = None
    """What the energies were before axes of theirs were merged; None if that is not known."""
    pieces: list[Piece] = field(default_factory=list)
    is_gate: bool = False
    """Whether its numbers were multiplied with others, one by one."""
    changed: bool = False
    """Whether what multiplied the values was made of its numbers by other functions."""
    left: int = MULTIPLICATIONS
    _dropped: list[tuple[Tensor, float]] = field(default_factory=list)
    """Results of dropout of the weights, with its probability."""
    _multiplied: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    """Results of such multiplications, with their version and both factors: their sum is a product."""
    _version: int = field(init=False)

    def __post_init__(self) -> None:
        self._version = _count(self.weights)

    def may_be(self, x: Tensor) -> bool:
        """Whether x may hold these weights: a view of them, or as many numbers."""
        return x.numel() == self.weights.numel() or _shares(x, self.weights)

    @property
    def complete(self) -> bool:
        """Whether all weights were multiplied with values."""
        if not self.pieces or self.pieces[0].is_statistic:
            return False
        return sum(piece.weights.numel() for piece in self.pieces) >= self.weights.numel()

    def note_dropout(self, out: Tensor, x: Tensor, p: float) -> None:
        if out is not x and self.may_be(x) and (x is self.weights or self._same(x, self.weights)):
            self._dropped.append((out, p))

    def note_multiplied(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        """Note a product of numbers one by one. It is a gate, unless it is summed as well."""
        self.left -= 1
        if self.may_be(a) or self.may_be(b):
            self.is_gate = True
            self._multiplied[out] = _count(out), a, b

    def product_of_sum(self, out: Tensor, x: Tensor, *args: Any, **options: Any) -> TensorProduct | None:
        """The product that `out`, the sum of x, is; None if x is no result of a multiplication that was noted."""
        version, a, b = self._multiplied.get(x, (None, None, None))
        product = None if a is None or version != _count(x) else summed_product(a, b, out, *args, **options)
        if product is None:
            return None
        side = 0 if self.may_be(product.operands[0]) else 1
        own, other = set(product.axes[side]), set(product.axes[1 - side])
        if other <= own:  # numbers for each weight, or each key: a statistic
            return None
        if own <= other and self.weights.dim() > 3:  # every query has values of its own: points that it samples
            return None
        return product

    def add(self, product: TensorProduct) -> bool:
        """Add the product if one operand is what the softmax returned and the product sums over its axis."""
        for side in (0, 1):
            used = self._find(product.operands[side], product.axes[side], product.contracted(side))
            matrices = None if used is None else product.matrices(side, used[1], _head_count(self.module))
            if used is None or matrices is None:
                continue
            piece = Piece(used[0], *matrices, used[2], product, side)
            if self.pieces and self.pieces[0].is_statistic and not piece.is_statistic:
                self.pieces.clear()
            if any(piece.place is None or piece.place == x.place or x.place is None for x in self.pieces):
                return False  # another use of the same weights
            if self._version != _count(self.weights) and self.module.training:  # dropout in place, or set to zero
                raise ChangedInPlaceError("the weights were changed in place between the softmax and the product")
            self.pieces.append(piece)
            return True
        return False

    def add_changed(self, product: TensorProduct) -> bool:
        """Add the product if one operand has the place of the weights, but other numbers, and values are several wide.

        It is in the same module, of the same shape or one that merges leading axes, and summed over the keys.
        """
        if self.pieces and not self.pieces[0].is_statistic:
            return False
        last = self.weights.dim() - 1
        for side in (0, 1):
            x, axes, keys = product.operands[side], product.axes[side], product.contracted(side)
            alike = x.numel() == self.weights.numel() and x.shape[-2:] == self.weights.shape[-2:] and last > 1
            if not alike or self.dim != last or len(keys) != 1 or not axes.endswith(keys):
                continue
            matrices = product.matrices(side, x, _head_count(self.module))
            queries, width = _roles(product.axes[side], product.axes[1 - side], product.out_axes)[1:]
            if matrices is None or not queries or not width:
                continue
            self.pieces[:], self.changed = [Piece(None, *matrices, 0.0, product, side)], True
            return True
        return False

    def call(self) -> Call:
        """The call of the products found."""
        first = self.pieces[0]
        if len(self.pieces) == 1:
            w, v, out = self._with_lead(first, *first[1:4])
        else:
            w, v, out = self._assembled()
        reason = "they were computed in the module's own code"
        if self.changed:
            reason += ", which changed what its softmax returned"
        return _call_of_weights(w, v, out, first.dropout, reason)

    def _assembled(self) -> tuple[Float[Tensor, "*lead q k"], Float[Tensor, "*lead k d"], Float[Tensor, "*lead q d"]]:
        """Weights, values and output of several slices."""
        weights = self.weights.movedim(self.dim, -1)
        width = self.pieces[0].v.shape[-1]
        v = self.pieces[0].v.new_zeros(*weights.shape[:-2], weights.shape[-1], width)
        out = self.pieces[0].out.new_zeros(*weights.shape[:-1], width)
        has_values = torch.zeros(v.shape[:-1], dtype=torch.bool)
        has_output = torch.zeros(out.shape[:-1], dtype=torch.bool)
        for piece in self.pieces:
            assert piece.place is not None
            place = list(piece.place)
            place.append(place.pop(self.dim))
            *lead, rows, columns = place
            own_v = piece.v.reshape(v[(*lead, columns)].shape)
            if bool(has_values[(*lead, columns)].any()) and not torch.equal(v[(*lead, columns)], own_v):
                raise ValueError("its queries have values of their own")
            v[(*lead, columns)] = own_v
            out[(*lead, rows)] += piece.out.reshape(out[(*lead, rows)].shape)
            has_values[(*lead, columns)], has_output[(*lead, rows)] = True, True
        # What has no product is left out: a sink.
        *lead, rows, columns = *_box(has_output), _box(has_values)[-1]
        if not bool(has_output[(*lead, rows)].all()):
            raise ValueError("some of its queries have no product with values that was found")
        return weights[(*lead, rows, columns)], v[(*lead, columns)], out[(*lead, rows)]

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
        axes, shape = piece.product.out_axes, piece.out.shape
        roles = _roles(piece.product.axes[piece.side], piece.product.axes[1 - piece.side], axes)
        lead = self._lead(piece)
        at = self._heads_at(piece, lead or tuple(piece.weights.shape[:-2]))

        def arrange(g: Tensor) -> Tensor:
            g = _arranged(g, axes, *roles).reshape(shape)
            return (g if lead is None else g.unflatten(0, lead)).movedim(at, -3)

        return arrange

    def head_axis(self) -> tuple[int, int] | None:
        """Where the heads are in the output of the last product found, and how many; None if it has no such axis.

        A product may have merged them with the batch, [B · heads, T, D].
        """
        piece = self.pieces[-1]
        out = piece.product.out_axes
        lead, _, _ = _roles(piece.product.axes[piece.side], piece.product.axes[1 - piece.side], out)
        merged = self._lead(piece)
        if not lead or piece.place is not None or (len(lead) == 1 and merged is None):
            return None
        at = self._heads_at(piece, merged or tuple(piece.weights.shape[: len(lead)]))
        if merged is not None:
            return (out.index(lead[-1]), merged[-1]) if at in (-3, 1) else None
        axis = out.index(lead[at if at >= 0 else -1])
        return axis, piece.product.out.shape[axis]

    def _same(self, x: Tensor, y: Tensor) -> bool:
        """Whether x has the numbers of y, also in another shape of the same order, or of another type."""
        return bool(_shares(x, y)) or torch.equal(x, y.reshape(x.shape).to(x.dtype))

    def _find(self, x: Tensor, axes: str, keys: str) -> tuple[Place | None, Tensor, float] | None:
        """Where the weights x lie, in the order of x, and the dropout after them; None if x is something else."""
        if not keys:
            return None
        weights, dim, last = self.weights, self.dim, axes.index(keys[-1])
        count = torch.Size(x.shape[axes.index(axis)] for axis in keys).numel()
        if _shares(x, weights):
            if x.stride(last) != weights.stride(dim) and x.shape[last] > 1:
                return None
            if x.numel() == weights.numel():
                return (None, x, 0.0) if count == weights.shape[dim] else None
            place = _place_in(weights, x)
            size = 0 if place is None else len(range(*place[dim].indices(weights.shape[dim])))
            return (place, x, 0.0) if size == count else None
        if x.numel() != weights.numel() or count != weights.shape[dim]:
            return None
        if weights.shape == x.shape and dim == last:
            arrange: Callable[[Tensor], Tensor] = _as_it_is
        elif dim == weights.dim() - 1 and axes.endswith(keys):
            arrange = functools.partial(torch.reshape, shape=x.shape)
        elif dim == weights.dim() - 1 and weights.mT.shape == x.shape:
            arrange = torch.adjoint
        else:
            return None
        for dropped, p in self._dropped:
            if _shares(x, dropped) or torch.equal(x, arrange(dropped)):
                return None, arrange(weights), p
        return (None, x, 0.0) if torch.equal(x, arrange(weights).to(x.dtype)) else None

    def _with_lead(self, piece: Piece, w: Tensor, v: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The matrices with their leading axes as [*batch, heads]."""
        if w.dim() == 2:
            return w, v, out
        lead = self._lead(piece)
        if lead is not None:
            w, v, out = (x.unflatten(0, lead) for x in (w, v, out))
        at = self._heads_at(piece, lead or tuple(w.shape[:-2]))
        return w.movedim(at, -3), v.movedim(at, -3), out.movedim(at, -3)

    def _lead(self, piece: Piece) -> tuple[int, ...] | None:
        """The leading axes that a product merged: those the softmax had, or those of what its operands are views of.

        [batch · heads] and [heads · batch] look alike. Where nothing tells them apart they stay one axis.
        """
        w, heads, own = piece.weights, _head_count(self.module), tuple(self.weights.shape[:-2])
        if w.dim() != 3:
            return None
        if len(own) > 1 and self.weights.shape[-2] == w.shape[-2] and torch.Size(own).numel() == w.shape[0]:
            return own
        if heads is None or heads == 1 or w.shape[0] % heads:
            return None
        batch = w.shape[0] // heads
        if batch == 1 or _layout(piece.v).is_adjacent(0):
            return batch, heads
        found = set()
        for before in (self.before, *map(_before, piece.product.operands)):
            if before is not None and len(before.shape) > 3:
                adjacent = [before.is_adjacent(axis) for axis in (0, 1)]
                if sorted(before.shape[:2]) == sorted((batch, heads)) and (batch != heads or any(adjacent)):
                    found.add((batch, heads, before.shape[0] == batch if batch != heads else adjacent[1]))
        # [heads · batch] is unflattened in the order that it has: `_heads_at` finds the heads.
        if len(found) != 1:
            return None
        return (batch, heads) if found.pop()[2] else (heads, batch)

    def _heads_at(self, piece: Piece, lead: tuple[int, ...]) -> int:
        """Which leading axis is that of the heads: the last, if nothing says otherwise.

        Features of one token lie beside each other, [heads, D]: of the values as the projection left them, this axis
        has the smallest stride but one. Of copies it is the axis with as many entries as the module declares heads.
        """
        if len(lead) != 2:
            return -3
        values = _layout(piece.v)
        adjacent = [axis for axis in (0, 1) if len(values.shape) == 4 and values.is_adjacent(axis)]
        if len(adjacent) == 1:
            return adjacent[0]
        heads = _head_count(self.module)
        declared = [axis for axis, size in enumerate(lead) if size == heads]
        return declared[0] if len(declared) == 1 else -3


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _count(x: Tensor) -> int:
    """The version counter; in inference mode there is none, and what is held is what multiplies the values."""
    return 0 if x.is_inference() else x._version


def _shares(x: Tensor, y: Tensor) -> bool:
    return bool(x.untyped_storage()._cdata == y.untyped_storage()._cdata)


def _layout(x: Tensor) -> Layout:
    return Layout(tuple(x.shape), x.stride())


def _place_in(whole: Tensor, part: Tensor) -> Place | None:
    """Which slice of `whole` this view of it is; None if it is not made of one slice of each axis."""
    left = part.storage_offset() - whole.storage_offset()
    sizes = {part.stride(axis): n for axis, n in enumerate(part.shape) if n > 1}
    place: list[slice] = [slice(0, 1)] * whole.dim()
    for axis in sorted(range(whole.dim()), key=whole.stride, reverse=True):
        stride = whole.stride(axis)
        if whole.shape[axis] == 1 or not stride:
            continue
        start, left = int(left // stride), int(left % stride)
        size = sizes.pop(stride, 1)
        if not 0 <= start <= start + size <= whole.shape[axis]:
            return None
        place[axis] = slice(start, start + size)
    return tuple(place) if not left and not sizes else None


def _box(known: Tensor) -> tuple[slice, ...]:
    """The smallest slices that have everything known."""
    where = known.nonzero()
    return tuple(slice(a, b + 1) for a, b in zip(where.amin(0).tolist(), where.amax(0).tolist(), strict=True))


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
        waiting.append(OpenSoftmax(weights, dim % weights.dim(), module, _before(input)))
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


def _dropout(
    original: Callable[..., Tensor],
    input: Tensor,
    p: float = 0.5,
    training: bool = True,  # torch.dropout calls it `train`, and has it in the same place
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    with suspend_reports():
        out = original(input, p, training, *args, **kwargs)
    if training and p and type(out) is torch.Tensor:
        with torch.no_grad(), suspend_reports():
            for softmax in local.state.softmaxes:
                softmax.note_dropout(out, input, float(p))
    return out


_merged = WeakIdKeyDictionary()
"""Copies whose axes were merged, with what they were before."""


def when_leading_axes_merge(original: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    """Notes what a copy was before its leading axes were merged. Models reshape often: it is written for speed."""

    def tapped(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        if out.dim() == 3 and args and args[0].dim() > 3 and args[0].shape[-1] == out.shape[-1] and is_active():
            _merged[out] = _layout(args[0])
        return out

    return tapped


def _before(x: Any) -> Layout | None:
    """What x was before axes of it were merged."""
    if type(x) is not torch.Tensor:
        return None
    base = x._base if x._is_view() else None
    known: Layout | None = _merged.get(x, None if base is None else _merged.get(base))
    return _layout(base) if known is None and base is not None else known


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
            if product is not None and softmax is None:
                softmax = _changed(product)
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


def _changed(product: TensorProduct) -> OpenSoftmax | None:
    """The softmax that this product follows in the same module, whose result was changed since.

    Of several whose results were joined, the last is the one of all.
    """
    waiting, module = local.state.softmaxes, calling_module()
    own = [x for x in waiting if x.module is module]
    softmax = next((x for x in reversed(own) if x.add_changed(product)), None)
    if softmax is not None:
        for other in own:
            if other is not softmax and not other.pieces and other.weights.shape[-2:] == softmax.weights.shape[-2:]:
                waiting.remove(other)
    return softmax


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
    (_dropout, [(F, "dropout"), (torch, "dropout")]),
]
MERGES = [(torch, "reshape"), (torch, "flatten"), (torch.Tensor, "reshape"), (torch.Tensor, "flatten")]
TAP = Tap(
    "a softmax followed by a product with values",
    [
        *(Replacement(owner, "softmax", _softmax) for owner in (F, torch, torch.Tensor)),
        *(Replacement(*place, tap, when_softmax_waits) for tap, places in MULTIPLIES for place in places),
        *(Replacement(*place, _before, when_leading_axes_merge) for place in MERGES),
    ],
)
