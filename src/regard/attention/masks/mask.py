"""Mask: which keys a query may see; True means it may. Its operators `&`, `|` and `~`, and the mask of a function."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from ..block_indices import (
    at_each_index,
    batch_and_head,
    check_batch_and_head,
    grid,
)
from ..part import Part, takes
from ..torch_transforms import is_known, traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool
    from torch import Tensor

    from ..block_indices import Batch

    Interval = tuple[Tensor, Tensor]
    MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """FlexAttention's `mask_mod`: (b, h, q_idx, kv_idx) → may this query see this key, all of them scalars."""

BLOCK = 1 << 22
"""Entries of a dense mask that are computed at once."""


class Mask(Part):
    """A rule (batch, i, j) → may query i see key j. Compose with `&`, `|` and `~`; `print` draws it."""

    causal_offset: int | None = None
    """The n of a mask that is exactly "j ≤ i + n"."""
    starts_at_first: bool = False
    """Whether every interval that `bounds` gives begins at key 0."""
    seen: Tensor | None = None
    """The boolean tensor, of a mask made from one."""

    @property
    def is_causal(self) -> bool:
        """Exactly "j ≤ i": what SDPA's fast causal path computes."""
        return is_known(self.causal_offset == 0)

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        """Raise ValueError where the mask cannot belong to a matrix of this shape."""

    def resolve(self, queries: int | Tensor, keys: int | Tensor) -> Mask:
        """The same rule with what depends on the numbers of queries and keys filled in; [B] where sequences differ."""
        return self

    def to_device(self, device: torch.device) -> Mask:
        """The same with lengths, ids, centers and offsets on this device. A boolean matrix has to be there already."""
        return self.map_tensors(lambda x: x if x.dtype == torch.bool else x.to(device))

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        """(start, stop) such that query i sees exactly the keys start ≤ j < stop; None where it is no interval."""
        return None

    def dense(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Bool[Tensor, "..."]:
        """The mask as a boolean tensor that broadcasts to [*batch, T_q, T_k]."""
        rule = self.resolve(queries, keys)
        leading, i, j = grid(batch, queries, keys, device)
        if queries * keys <= BLOCK or traced():
            return rule(leading, i, j)
        # A block of rows at a time: composed masks hold several temporary tensors.
        first = rule(leading, i[:2], j)
        if first.dim() < 2 or first.shape[-2] != 2:  # the rule does not depend on the query
            return rule(leading, i, j)
        tall = max(1, 2 * BLOCK // first.numel())
        seen = first.new_empty(*first.shape[:-2], queries, first.shape[-1])
        for row in range(0, queries, tall):
            seen[..., row : row + tall, :] = rule(leading, i[row : row + tall], j)
        return seen

    def hidden(
        self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device
    ) -> Bool[Tensor, "..."] | None:
        """Keys that no query sees, broadcastable to [*batch, T_k], as far as the rule names them; None for none."""
        return None

    def batch_bounds(self, batch: tuple[int, ...], keys: int, device: torch.device) -> Interval | None:
        """`bounds` as [n, 1] where they are the same for all queries of a matrix and need no index tensors."""
        return None

    def __and__(self, other: Mask | MaskFunction) -> Mask:
        return And(self, _mask(other))

    def __rand__(self, other: MaskFunction) -> Mask:
        return And(_mask(other), self)

    def __or__(self, other: Mask | MaskFunction) -> Mask:
        return Or(self, _mask(other))

    def __ror__(self, other: MaskFunction) -> Mask:
        return Or(_mask(other), self)

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return True  # Dynamo compares every object it holds
        raise TypeError("a mask is neither true nor false; combine masks with &, | and ~, not with and, or and not")

    def example(self) -> tuple[tuple[int, ...], int, int]:
        """A shape (batch, T_q, T_k) this mask can be drawn at."""
        return (), 8, 8

    def draw(self, batch: tuple[int, ...], queries: int, keys: int) -> str:
        """A picture of the first entry of the batch: rows are queries, columns keys, █ seen and · not."""
        seen = self.dense(batch, queries, keys, torch.device("cpu"))
        first = seen.expand(*batch, queries, keys).reshape(-1, queries, keys)[0]
        return "\n".join("".join("█" if cell else "·" for cell in row) for row in first.tolist())

    def __str__(self) -> str:
        batch, queries, keys = self.example()
        return f"{self!r}\n{self.draw(batch, min(queries, 64), min(keys, 64))}"


def _mask(other: object) -> Mask:
    if isinstance(other, Mask):
        return other
    if callable(other) and takes(other, 4):
        return MaskMod(other)
    raise TypeError(
        "masks combine with masks and with functions of (b, h, q_idx, kv_idx); wrap a boolean tensor as "
        f"dense(tensor), got {type(other).__name__}"
    )


class _Pair(Mask):
    sign = ""

    def __init__(self, left: Mask, right: Mask) -> None:
        self.left, self.right = left, right
        self.starts_at_first = left.starts_at_first and right.starts_at_first

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        self.left.check(batch, queries, keys)
        self.right.check(batch, queries, keys)

    def resolve(self, queries: int | Tensor, keys: int | Tensor) -> Mask:
        left, right = self.left.resolve(queries, keys), self.right.resolve(queries, keys)
        return self if left is self.left and right is self.right else type(self)(left, right)

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        # The mask with the more specific shape decides; masks without a shape use 8 × 8.
        return max(self.left.example(), self.right.example(), key=lambda shape: (len(shape[0]), shape[1:] != (8, 8)))


class And(_Pair):
    sign = "&"

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return self.left(batch, i, j) & self.right(batch, i, j)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        left, right = self.left.bounds(batch, i, keys), self.right.bounds(batch, i, keys)
        if left is None or right is None:
            return None
        start, stop = torch.maximum(left[0], right[0]), torch.minimum(left[1], right[1])
        return start, torch.maximum(start, stop)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        left, right = (x.hidden(batch, queries, keys, device) for x in (self.left, self.right))
        return left if right is None else right if left is None else left | right


class Or(_Pair):
    sign = "|"

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return self.left(batch, i, j) | self.right(batch, i, j)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        # Two intervals join into one when both begin at the first key, which is known without reading tensors.
        if not self.starts_at_first:
            return None
        left, right = self.left.bounds(batch, i, keys), self.right.bounds(batch, i, keys)
        if left is None or right is None:
            return None
        return torch.minimum(left[0], right[0]), torch.maximum(left[1], right[1])

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        left, right = (x.hidden(batch, queries, keys, device) for x in (self.left, self.right))
        return None if left is None or right is None else left & right


class Not(Mask):
    def __init__(self, inner: Mask) -> None:
        self.inner = inner

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        self.inner.check(batch, queries, keys)

    def resolve(self, queries: int | Tensor, keys: int | Tensor) -> Mask:
        inner = self.inner.resolve(queries, keys)
        return self if inner is self.inner else Not(inner)

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return ~self.inner(batch, i, j)

    def __invert__(self) -> Mask:
        return self.inner

    def __repr__(self) -> str:
        return f"~{self.inner!r}"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return self.inner.example()


class MaskMod(Mask):
    """A mask given as FlexAttention's `mask_mod`, a function of the four scalars (b, h, q_idx, kv_idx)."""

    def __init__(self, function: MaskFunction) -> None:
        if isinstance(function, type) or not callable(function) or not takes(function, 4):
            raise TypeError(f"mask_mod takes a function of (b, h, q_idx, kv_idx), got {function!r}")
        self.function = function

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        check_batch_and_head("mask_mod", batch)

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        b, h = batch_and_head(batch, i)
        shape = torch.broadcast_shapes(b.shape, h.shape, i.shape, j.shape)
        if 0 in shape:
            return torch.zeros(shape, dtype=torch.bool, device=i.device)
        return at_each_index(self._scalar, b, h, i, j)

    def _scalar(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = torch.as_tensor(self.function(b, h, i, j), device=i.device)
        if seen.dtype != torch.bool or seen.dim():
            raise TypeError(
                "mask_mod is called with four scalars and returns one boolean, True where the query may see the key; "
                f"{_function_name(self.function)} returned {seen.dtype} of shape {list(seen.shape)}"
            )
        return seen

    def __repr__(self) -> str:
        return f"mask_mod({_function_name(self.function)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        # Tables of positions, such as documents, are as long as the sequence.
        length = min([8, *(x.shape[-1] for x in self.function_tensors() if x.dim())])
        return (), length, length


def _function_name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def mask_mod(function: MaskFunction) -> Mask:
    """FlexAttention's `mask_mod` as a mask: query q_idx sees key kv_idx where function(b, h, q_idx, kv_idx) is True.

    `attend(…, mask=function)` and `causal() & function` do the same; this is for `~mask_mod(function)` and for
    drawing. The function is called as FlexAttention calls it: with scalars, under `torch.vmap`. With inputs [B, T, D]
    h is 0, and with [T, D] b is, too. `Weights` raises where a tensor that the function
    names was changed in place.
    """
    return MaskMod(function)
