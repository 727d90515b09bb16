"""Attention that a module writes out: finds the weights of a softmax in products, and makes a record of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...attention.tensor_versions import ChangedInPlaceError, TensorVersions
from . import call_routing
from .computed_weights import record_of_weights
from .output_gradients import GraphOutput
from .recording.written_scores import NotRecomputableError, recomputed_record
from .tensor_product import output_matrix, same_values

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

    from .call_inputs_and_output import Record
    from .recording.written_scores import WrittenScores
    from .tensor_product import TensorProduct

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "nheads", "num_attn_heads")
"""Attributes by which modules state their number of heads."""


def head_count(module: nn.Module | None) -> int | None:
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
    origin: WrittenScores | str
    """How its input was computed, or why that is not known."""
    pieces: list[Piece] = field(default_factory=list)
    is_gate: bool = False
    """Whether its numbers were multiplied with others, one by one."""
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

    def record(self) -> Record:
        """The record of the products found."""
        pieces = sorted(self.pieces, key=lambda piece: piece.first)
        w, v, out, dropout = pieces[0][1:5]
        if len(pieces) > 1:
            w = torch.cat([piece.weights for piece in pieces], dim=-1)
            v = torch.cat([piece.v for piece in pieces], dim=-2)
            out = torch.stack([piece.out for piece in pieces]).sum(0)
        lead = self._lead(w)
        if lead is not None:
            w, v, out = (x.unflatten(0, lead) for x in (w, v, out))
        changed, accesses = self._versions.changed(), call_routing.local.state.memory_accesses
        try:
            scores = self._scores()
            every = changed or any(x.memory_accesses != accesses for x in scores.products())
            return recomputed_record(scores, w, v, out, dropout, every)
        except NotRecomputableError as error:
            reason = "its weights were changed in place after the softmax" if changed else str(error)
            return record_of_weights(w, v, out, dropout=dropout, reason=reason)

    def _scores(self) -> WrittenScores:
        """How the input of the softmax was computed, if one product with values has all keys in its order."""
        if isinstance(self.origin, str):
            raise NotRecomputableError(self.origin)
        if len(self.pieces) > 1 or not self.complete:
            raise NotRecomputableError("its weights are multiplied with values in parts")
        if self.dim != self.weights.dim() - 1:
            raise NotRecomputableError(f"its softmax is over axis {self.dim} of {list(self.weights.shape)}")
        return self.origin

    def output(self) -> GraphOutput | None:
        """The output with its graph; None if it is the sum of several products."""
        if len(self.pieces) != 1:
            return None
        (piece,) = self.pieces
        own, other, out = piece.product.axes[piece.side], piece.product.axes[1 - piece.side], piece.product.out_axes
        lead = self._lead(piece.weights)

        def arrange(g: Tensor) -> Tensor:
            """Part of a hook of the output's graph: it holds no tensor, which would keep that graph alive for ever."""
            g = output_matrix(g, own, other, out)
            return g if lead is None else g.unflatten(0, lead)

        return GraphOutput(piece.product.out, arrange)

    def head_axis(self) -> tuple[int, int] | None:
        """Where the heads are in the output of the last product found, and how many; None if it has no such axis.

        A product may have merged them with the batch, [B · heads, T, D].
        """
        piece = self.pieces[-1]
        axes, other, out = piece.product.axes[piece.side], piece.product.axes[1 - piece.side], piece.product.out_axes
        lead, merged = [x for x in axes if x in other and x in out], self._lead(piece.weights)
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
        dropout = same_values(x, order)
        return None if dropout is None else (0, order if dropout else x, dropout)

    def _lead(self, w: Tensor) -> tuple[int, ...] | None:
        """The leading axes that a product merged: those the softmax had, or [B, heads] by the number of heads."""
        lead, heads = tuple(self.weights.shape[:-2]), head_count(self.module)
        if w.dim() != 3:
            return None
        if len(lead) > 1 and self.weights.shape[-2] == w.shape[-2] and torch.Size(lead).numel() == w.shape[0]:
            return lead
        if heads is not None and heads > 1 and w.shape[0] % heads == 0:
            return (w.shape[0] // heads, heads)
        return None if isinstance(self.origin, str) or len(self.origin.leading()) < 2 else self.origin.leading()
