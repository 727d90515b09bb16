"""Masks: which keys a query may see. True means it may.

    causal() & padding(lengths) | prefix(n)      ~documents(ids)      print(window(3))

A mask is a rule about indices. From the rule come the forms that kernels want: `is_causal` for SDPA, `mask_mod` for
FlexAttention, an interval of keys per query (`bounds`) for kernels that skip whole blocks, and the dense tensor.

Lengths, ids and centers are copied when a mask is made, so later changes do not reach it; a boolean matrix is too large
for that, and is held by reference.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import torch

from .parts import (
    Part,
    at_each_index,
    batch_and_head,
    brief,
    check_batch_and_head,
    check_device,
    fits,
    grid,
    is_known,
    pick,
    readable,
    takes,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from jaxtyping import Bool, Int
    from torch import Tensor

    from .parts import Batch

    Interval = tuple[Tensor, Tensor]
    MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """FlexAttention's `mask_mod`: (b, h, q_idx, kv_idx) → may this query see this key, all of them scalars."""


def whole_numbers(x: int | list[int] | Tensor | None) -> Tensor:
    """A tensor of these numbers; an empty list, which PyTorch would make one of floats, has whole ones, too."""
    return torch.as_tensor(x, dtype=torch.int64 if isinstance(x, list) and not x else None)


def leading_entries(tensor: Tensor, batch: Batch, last: Tensor | None = None) -> Tensor:
    """Entries of a tensor whose dimensions belong to the first leading dimensions, then (optionally) to `last`."""
    # Lengths and ids are small and often made on the CPU; they follow the inputs.
    tensor = tensor.to(next((x.device for x in (*batch, last) if x is not None), tensor.device))
    if tensor.dim() == 0:
        return tensor
    own = tensor.dim() - (last is not None)
    chosen = [*batch[:own], *([] if last is None else [last])]
    return tensor[tuple(x if n > 1 else torch.zeros_like(x) for n, x in zip(tensor.shape, chosen, strict=True))]


def without_queries(rule: Tensor) -> Tensor:
    """[*batch, k] from a rule [*batch, 1, k], or from one that has no dimension for queries."""
    return rule.squeeze(-2) if rule.dim() > 1 else rule


def check_leading(what: str, shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    if len(shape) > len(batch) or any(n != 1 and n != m for n, m in zip(shape, batch, strict=False)):
        raise ValueError(
            f"{what} of leading shape {list(shape)}; the attention's leading shape is {list(batch)}. They belong to "
            "its first dimensions: [B] to the batch, [B, heads] to batch and heads"
        )


class Mask(Part):
    """A rule (batch, i, j) → may query i see key j. Compose with `&`, `|` and `~`; `print` draws it."""

    causal_offset: int | None = None
    """The n of a mask that is exactly "j ≤ i + n"."""
    starts_at_first: bool = False
    """Whether every interval that `bounds` gives begins at key 0."""
    seen: Tensor | None = None
    """The boolean tensor, of a mask made from one."""
    fixed: bool = False
    """Whether the rule stays as it is: it asks no tensor or function of a user's."""
    _kept: tuple[tuple[tuple[int, ...], int, int], Tensor] | None = None

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
        return rule(*grid(batch, queries, keys, device))

    def kept_dense(self, batch: tuple[int, ...], queries: int, keys: int) -> Bool[Tensor, "..."] | None:
        """`dense` on the CPU, as it was made for the last call of this shape; None where it may change."""
        if not self.fixed:
            return None
        kept = self._kept  # read once: other threads may replace it
        if kept is None or kept[0] != (batch, queries, keys):
            rule = self.resolve(queries, keys)
            rule.check(batch, queries, keys)
            kept = self._kept = (batch, queries, keys), rule.dense(batch, queries, keys, torch.device("cpu"))
        return kept[1]

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        part = super().map_tensors(function)
        part._kept = None
        return part

    def hidden(
        self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device
    ) -> Bool[Tensor, "..."] | None:
        """Keys that no query sees, broadcastable to [*batch, T_k], as far as the rule names them; None for none."""
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
        self.fixed = left.fixed and right.fixed

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
        self.inner, self.fixed = inner, inner.fixed

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


class Blocks(MaskMod):
    """FlexAttention's BlockMask: whole blocks of keys that queries see, and blocks of which `mask_mod` says more."""

    def __init__(self, block_mask: Any) -> None:
        super().__init__(block_mask.mask_mod)
        self.block_mask = block_mask
        self.sides: tuple[int, int] = block_mask.BLOCK_SIZE
        self.part = _table(block_mask.kv_num_blocks, block_mask.kv_indices)
        full = block_mask.full_kv_num_blocks
        self.whole = torch.zeros_like(self.part) if full is None else _table(full, block_mask.full_kv_indices)

    @classmethod
    def of(cls, given: Any) -> Blocks | None:
        """The mask of a BlockMask, made once for each; None for anything else."""
        flex = sys.modules.get("torch.nn.attention.flex_attention")  # who has one, has imported it
        if flex is None or not isinstance(given, flex.BlockMask):
            return None
        if not hasattr(given, "_regard_mask"):
            given._regard_mask = cls(given)
        return given._regard_mask  # type: ignore[no-any-return]

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        super().check(batch, queries, keys)
        if tuple(self.block_mask.seq_lengths) != (queries, keys):
            own = " × ".join(map(str, self.block_mask.seq_lengths))
            raise ValueError(f"the BlockMask is for {own} queries and keys; there are {queries} × {keys}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        b, h = batch_and_head(batch, i)
        at = [x if n > 1 else torch.zeros_like(x) for n, x in zip(self.part.shape, (b, h), strict=False)]
        place = (*at, i // self.sides[0], j // self.sides[1])
        return self.whole[place] | (self.part[place] & super().__call__(batch, i, j))

    def __repr__(self) -> str:
        return f"BlockMask({_function_name(self.function)})"


def _table(count: Tensor, indices: Tensor) -> Bool[Tensor, "b h rows blocks"]:
    """Which blocks of keys each row of blocks lists."""
    last = indices.shape[-1]
    listed = torch.arange(last, device=count.device) < count[..., None]
    seen = torch.zeros(*indices.shape[:-1], last + 1, dtype=torch.bool, device=count.device)
    return seen.scatter_(-1, torch.where(listed, indices, last).long(), True)[..., :last]


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


CORNERS = "top-left", "bottom-right"


class Causal(Mask):
    fixed = True

    starts_at_first = True

    def __init__(self, offset: int | str | Tensor) -> None:
        if isinstance(offset, str):
            if offset not in CORNERS:
                raise ValueError(f'causal takes "top-left", "bottom-right" or an offset, got {offset!r}')
        elif isinstance(offset, torch.Tensor):
            if offset.is_floating_point() or offset.dtype == torch.bool:
                raise TypeError(f"causal needs whole offsets, got a tensor of {offset.dtype}")
            offset = offset.to(torch.int64, copy=True)
        else:
            whole("causal's offset", offset)
            self.causal_offset = offset
        self.offset = offset

    def resolve(self, queries: int | Tensor, keys: int | Tensor) -> Mask:
        if isinstance(self.offset, str):
            return Causal(0 if self.offset == "top-left" else keys - queries)
        return self

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if isinstance(self.offset, torch.Tensor):
            check_leading("causal has offsets", tuple(self.offset.shape), batch)

    def _last(self, batch: Batch, i: Tensor) -> Tensor:
        """The last key that each query sees."""
        if isinstance(self.offset, str):
            raise ValueError(f"{self!r} depends on the numbers of queries and keys; call resolve(queries, keys) first")
        return i + (leading_entries(self.offset, batch) if isinstance(self.offset, torch.Tensor) else self.offset)

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j <= self._last(batch, i)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = (self._last(batch, i) + 1).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if not isinstance(self.offset, torch.Tensor | str) and is_known(queries + self.offset >= keys):
            return None
        last = self._last(grid(batch, 0, 0, device)[0], torch.full((1, 1), 1, device=device) * (queries - 1))
        return without_queries(torch.arange(keys, device=device) > last)

    def __repr__(self) -> str:
        if isinstance(self.offset, torch.Tensor):
            return f"causal({brief(self.offset)})"
        return f"causal({self.offset!r})" if self.offset else "causal()"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        if isinstance(self.offset, torch.Tensor):
            return tuple(self.offset.shape), 8, 8
        return ((), 5, 8) if self.offset == "bottom-right" else super().example()


def causal(offset: int | Literal["top-left", "bottom-right"] | list[int] | Int[Tensor, " *batch"] = 0) -> Mask:
    """Query i sees keys j ≤ i + offset.

    "bottom-right" is the offset T_k − T_q, by which the last query sees the last key (a key/value cache); "top-left" is
    0. Offsets `[B]` belong to the first leading dimension.
    """
    return Causal(torch.tensor(offset) if isinstance(offset, list) else offset)


class Window(Mask):
    fixed = True

    def __init__(self, size: int, center: Tensor | None, offset: int) -> None:
        whole("window's size", size)
        if size < 1:
            raise ValueError(f"window needs a size ≥ 1, got {size}")
        if center is not None:
            # In bfloat16 the positions of keys would be rounded.
            kind = torch.promote_types(center.dtype, torch.float32) if center.is_floating_point() else torch.int64
            center = center.detach().to(kind, copy=True)
        self.size, self.center, self.offset = size, center, offset

    def middle(self, batch: Batch, i: Tensor) -> Tensor:
        if self.center is None:
            return i + self.offset
        return pick(self.center[..., None].to(i.device), batch, i, torch.zeros_like(i))

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if self.center is not None and self.center.dim() == 0:
            raise ValueError("window has one center; expected one per query, [..., T_q] (or [1] for all)")
        if self.center is not None and not fits(tuple(self.center.shape), (*batch, queries)):
            raise ValueError(
                f"window has centers of shape {list(self.center.shape)}, which do not broadcast to one per query, "
                f"{[*batch, queries]}; they align with the last dimensions, as tensors do: for every head alike give "
                "[B, 1, T_q]"
            )

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        middle = self.middle(batch, i)
        return (j > middle - self.size) & (j < middle + self.size)  # without a tensor of differences i − j

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        middle = self.middle(batch, i)
        # |j − m| < n for whole j: from floor(m − n) + 1 up to ceil(m + n) − 1, for integer and fractional m.
        if middle.is_floating_point():
            start, stop = (middle - self.size).floor().long() + 1, (middle + self.size).ceil().long()
        else:
            start, stop = middle - self.size + 1, middle + self.size
        return start.clamp(0, keys), stop.clamp(0, keys)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if self.center is not None:
            return None
        # The first query sees from `first` on, the last one up to `last`, and those between see all between.
        first, last = self.offset - self.size + 1, queries - 1 + self.offset + self.size - 1
        if is_known(first <= 0) and is_known(last >= keys - 1):
            return None
        j = torch.arange(keys, device=device)
        return (j < first) | (j > last)

    def __repr__(self) -> str:
        center = "" if self.center is None else ", center=…"
        return f"window({self.size}{center}{f', offset={self.offset}' if self.offset else ''})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        if self.center is None:
            return super().example()
        *batch, queries = self.center.shape
        return tuple(batch), queries, int(self.center.max()) + self.size


def window(size: int, *, center: Tensor | None = None, offset: int = 0) -> Mask:
    """Query i sees keys closer than `size`: |j − i − offset| < size, so `causal() & window(n)` sees n keys.

    `center` [..., T_q] puts query i's window around a place of its own (Luong's local attention), whole or not.
    """
    return Window(size, center, offset)


class _Lengths(Mask):
    """Rules about the first `length` positions of each entry of the batch."""

    fixed = True
    starts_at_first = True
    name, side = "padding", "keys"

    def __init__(self, lengths: Tensor) -> None:
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"{self.name} needs whole lengths of the {self.side}, got a tensor of {lengths.dtype}")
        self.lengths = lengths.to(torch.int64, copy=True)

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        of = "" if self.side == "keys" else " of queries"
        check_leading(f"{self.name} has lengths{of}", tuple(self.lengths.shape), batch)
        # Checked only where reading is free: not on a GPU, and not for tensors without data.
        if self.lengths.device.type == "cpu" and self.lengths.numel() and readable(self.lengths):
            low, high = (int(x) for x in self.lengths.aminmax())
            most = keys if self.side == "keys" else queries
            if low < 0 or high > most:
                raise ValueError(f"{self.name} has lengths from {low} to {high}; there are {most} {self.side}")

    def length(self, batch: Batch) -> Tensor:
        return leading_entries(self.lengths, batch)

    def longest(self) -> int:
        return max(int(self.lengths.max()) if self.lengths.numel() else 0, 1)


class Padding(_Lengths):
    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        return without_queries(~self(*grid(batch, 1, keys, device)))

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j < self.length(batch)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = self.length(batch).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def __repr__(self) -> str:
        return f"{self.name}({brief(self.lengths)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.lengths.shape), self.longest(), self.longest()


class QueryPadding(_Lengths):
    """Queries i < length are real; the rest see no key."""

    side = "queries"

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return i < self.length(batch)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = self(batch, i, i) * keys
        return torch.zeros_like(stop), stop

    def __repr__(self) -> str:
        return f"padding(queries={brief(self.lengths)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.lengths.shape), max(self.longest(), 8), 8


def padding(
    lengths: int | list[int] | Int[Tensor, " *batch"] | None = None,
    *,
    queries: int | list[int] | Int[Tensor, " *batch"] | None = None,
) -> Mask:
    """Keys j < length are real, the rest are padding.

    Lengths, as the ids of `documents`, belong to the first leading dimensions: `[B]` to the batch. A `dense` mask and
    the centers of `window` align with the last, as tensors broadcast: `[B, 1, T_q, T_k]` and `[B, 1, T_q]`.

    `queries` are the lengths of the queries: those from there on see no key, so that their outputs, weights and
    gradients are zero. For queries that are not the last ones use `dense(real[..., None])`.
    """
    if lengths is None and queries is None:
        raise TypeError("padding needs the lengths of the keys, of the queries (queries=…), or both")
    if queries is None:
        return Padding(whole_numbers(lengths))
    own = QueryPadding(whole_numbers(queries))
    return own if lengths is None else Padding(whole_numbers(lengths)) & own


class Prefix(Padding):
    """The same rule as padding; another name because it is used with `|`, to open keys rather than close them."""

    name = "prefix"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.lengths.shape), 8, max(8, self.longest() + 4)


def prefix(size: int | list[int] | Int[Tensor, " *batch"]) -> Mask:
    """Every query sees keys j < size: `causal() | prefix(n)` is the prefix language model's mask."""
    return Prefix(whole_numbers(size))


class Documents(Mask):
    fixed = True

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        for ids in (queries, keys):
            if ids.is_floating_point() or ids.dtype == torch.bool or ids.dim() == 0:
                raise TypeError(
                    f"documents needs whole ids of shape [..., T], got {ids.dtype} of shape {list(ids.shape)}"
                )
        self.queries = queries.to(torch.int64, copy=True)  # unsigned differences would wrap
        self.keys = self.queries if keys is queries else keys.to(torch.int64, copy=True)
        # Ids in order make every document one interval of keys. Checked once, here, where it is cheap;
        # a compiled graph cannot read the ids, and takes the general path.
        self.in_order = readable(self.keys) and bool((self.keys.diff(dim=-1) >= 0).all())

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        for ids, length, side in ((self.queries, queries, "queries"), (self.keys, keys, "keys")):
            check_leading(f"documents has {side}' ids", tuple(ids.shape[:-1]), batch)
            if ids.shape[-1] != length:
                raise ValueError(f"documents has ids for {ids.shape[-1]} {side}, there are {length}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return leading_entries(self.queries, batch, i) == leading_entries(self.keys, batch, j)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if self.keys is self.queries:
            return None  # every key is in the document of the query at its place
        leading, i, j = grid(batch, queries, keys, device)
        seen = self(leading, i, j).any(-2)
        return ~seen

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        if not self.in_order:
            return None
        wanted = leading_entries(self.queries, batch, i).squeeze(-1)  # [q] or [n, q]
        ids = leading_entries(self.keys, batch, torch.arange(keys, device=i.device))  # [k] or [n, 1, k]
        if ids.dim() > 1 or wanted.dim() > 1:
            lead = torch.broadcast_shapes(ids.shape[:-2], wanted.shape[:-1])
            ids, wanted = (
                (ids.squeeze(-2) if ids.dim() > 1 else ids).expand(*lead, keys),
                wanted.expand(*lead, wanted.shape[-1]),
            )
        start, stop = (
            torch.searchsorted(ids.contiguous(), wanted.contiguous(), right=right) for right in (False, True)
        )
        return start[..., None], stop[..., None]

    def __repr__(self) -> str:
        return f"documents({brief(self.queries)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.queries.shape[:-1]), self.queries.shape[-1], self.keys.shape[-1]


def documents(ids: list[int] | Int[Tensor, "*batch q"], keys: Int[Tensor, "*batch k"] | None = None) -> Mask:
    """A query sees the keys of its own document: ids `[T]` or `[B, T]`, of the keys too unless `keys` gives theirs."""
    queries = whole_numbers(ids)
    return Documents(queries, queries if keys is None else torch.as_tensor(keys))


class Dense(Mask):
    """A mask given as a boolean tensor, which is kept by reference."""

    seen: Tensor

    def __init__(self, seen: Tensor) -> None:
        if seen.dtype != torch.bool:
            raise TypeError(
                f"dense needs a boolean tensor, True where a query may see a key, got {seen.dtype}. "
                "To add numbers to the energies use Modified(energy, Bias(tensor))."
            )
        self.seen = seen

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        shape, full = tuple(self.seen.shape), (*batch, queries, keys)
        if len(shape) < 2 or not fits(shape, full):
            hint = "; to close padded keys use padding(lengths), or mask[..., None, :]" if shape[-1:] == (keys,) else ""
            raise ValueError(f"mask of shape {list(shape)} does not broadcast to [..., T_q, T_k] = {list(full)}{hint}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return pick(self.seen, batch, i, j)

    def dense(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor:
        check_device("the mask", self.seen, device)
        return self.seen

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        check_device("the mask", self.seen, device)
        return ~self.seen.any(-2)

    def __repr__(self) -> str:
        return f"dense({brief(self.seen)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        *batch, queries, keys = self.seen.shape
        return tuple(batch), queries, keys


def dense(seen: Bool[Tensor, "*batch q k"]) -> Mask:
    """A boolean tensor that broadcasts to [..., T_q, T_k]; True where a query may see a key."""
    return Dense(seen)
