"""Masks: which keys a query may see. True means it may.

    causal() & padding(lengths) | prefix(n)      ~documents(ids)      print(window(3))

A mask is a rule about indices. From the rule come the forms that kernels want: `is_causal` for SDPA, `mask_mod` for
FlexAttention, an interval of keys per query (`bounds`) for kernels that skip whole blocks, and the dense tensor.

Lengths, ids and centers are copied when a mask is made, so it stays what it was whatever becomes of them; a matrix of
booleans is too large for that, and is held by reference.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from .block_indices import check_device, fits, grid, pick, unravel
from .torch_transforms import traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Int
    from torch import Tensor

    from .block_indices import Batch
    from .energy_matrix import EnergyMatrix

    Interval = tuple[Tensor, Tensor]


class Mask:
    """A rule (batch, i, j) → may query i see key j. Compose with `&`, `|` and `~`; `print` draws it."""

    is_causal = False
    """Exactly "j ≤ i" and nothing more: what SDPA's fast causal path computes."""

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        """Raise ValueError where the mask cannot belong to a matrix of this shape."""

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        """(start, stop) such that query i sees exactly the keys start ≤ j < stop; None where no interval says it."""
        return None

    def dense(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Bool[Tensor, "..."]:
        """The mask as a boolean tensor that broadcasts to [*batch, T_q, T_k]."""
        return self(*grid(batch, queries, keys, device))

    def tensors(self) -> list[Tensor]:
        """What it holds by reference: changed in place, it makes the mask another one."""
        return []

    def placed(self, place: Callable[[Tensor], Tensor]) -> Mask:
        """The same mask with its `tensors` where `place` puts them."""
        return self

    def __and__(self, other: Mask) -> Mask:
        return And(self, _mask(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _mask(other))

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return True  # Dynamo asks this of everything it holds
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
    if not isinstance(other, Mask):
        raise TypeError(f"masks combine with masks; wrap a boolean tensor as dense(tensor), got {type(other).__name__}")
    return other


class Causal(Mask):
    def __init__(self, offset: int) -> None:
        _check_whole("causal's offset", offset)
        self.offset = offset
        self.is_causal = offset == 0

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j <= i + self.offset

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        return torch.zeros_like(i), (i + self.offset + 1).clamp(0, keys)

    def __repr__(self) -> str:
        return f"causal({self.offset})" if self.offset else "causal()"


def causal(offset: int = 0) -> Mask:
    """Query i sees keys j ≤ i + offset. With a key/value cache, offset = T_k − T_q lines up the ends."""
    return Causal(offset)


class Window(Mask):
    def __init__(self, size: int, center: Tensor | None, offset: int) -> None:
        _check_whole("window's size", size)
        if size < 1:
            raise ValueError(f"window needs a size ≥ 1, got {size}")
        if center is not None:
            # In bfloat16 the places of keys themselves would be rounded.
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
                f"{[*batch, queries]}"
            )

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return (j - self.middle(batch, i)).abs() < self.size

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        middle = self.middle(batch, i)
        # |j − m| < n for whole j: from floor(m − n) + 1 up to ceil(m + n) − 1, both for whole and broken centers.
        if middle.is_floating_point():
            start, stop = (middle - self.size).floor().long() + 1, (middle + self.size).ceil().long()
        else:
            start, stop = middle - self.size + 1, middle + self.size
        return start.clamp(0, keys), stop.clamp(0, keys)

    def __repr__(self) -> str:
        return f"window({self.size}{'' if self.center is None else ', center=…'})"

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


class Padding(Mask):
    def __init__(self, lengths: Tensor) -> None:
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"{type(self).__name__.lower()} needs whole lengths, got a tensor of {lengths.dtype}")
        self.lengths = lengths.to(torch.int64, copy=True)

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        name = type(self).__name__.lower()
        _check_leading(f"{name} has lengths", tuple(self.lengths.shape), batch)
        # Looked at only where that is free: not on a GPU, nor where the numbers are not there to be looked at.
        if self.lengths.device.type == "cpu" and self.lengths.numel() and not traced():
            low, high = (int(x) for x in self.lengths.aminmax())
            if low < 0 or high > keys:
                raise ValueError(f"{name} has lengths from {low} to {high}; there are {keys} keys")

    def length(self, batch: Batch) -> Tensor:
        return _leading(self.lengths, batch)

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j < self.length(batch)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = self.length(batch).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({_brief(self.lengths)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        longest = int(self.lengths.max()) if self.lengths.numel() else 0
        return tuple(self.lengths.shape), max(longest, 1), max(longest, 1)


def padding(lengths: int | list[int] | Int[Tensor, " *batch"]) -> Mask:
    """Keys j < length are real, the rest filling. Lengths `[B]` belong to the first leading dimension."""
    return Padding(torch.as_tensor(lengths))


class Prefix(Padding):
    """The same rule as padding; another name because it is used with `|`, to open keys rather than close them."""

    def example(self) -> tuple[tuple[int, ...], int, int]:
        batch, _, longest = super().example()
        return batch, 8, max(8, longest + 4)


def prefix(size: int | list[int] | Int[Tensor, " *batch"]) -> Mask:
    """Every query sees keys j < size: `causal() | prefix(n)` is the prefix language model's mask."""
    return Prefix(torch.as_tensor(size))


class Documents(Mask):
    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        for ids in (queries, keys):
            if ids.is_floating_point() or ids.dtype == torch.bool or ids.dim() == 0:
                raise TypeError(
                    f"documents needs whole ids of shape [..., T], got {ids.dtype} of shape {list(ids.shape)}"
                )
        self.queries = queries.to(torch.int64, copy=True)  # unsigned differences would wrap
        self.keys = self.queries if keys is queries else keys.to(torch.int64, copy=True)
        # Ids in order make every document one interval of keys. Looked at once, here, where it costs little;
        # a compiled graph cannot look, and takes the general path.
        self.in_order = not traced() and bool((self.keys.diff(dim=-1) >= 0).all())

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        for ids, length, side in ((self.queries, queries, "queries"), (self.keys, keys, "keys")):
            _check_leading(f"documents has {side}' ids", tuple(ids.shape[:-1]), batch)
            if ids.shape[-1] != length:
                raise ValueError(f"documents has ids for {ids.shape[-1]} {side}, there are {length}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return _leading(self.queries, batch, i) == _leading(self.keys, batch, j)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        if not self.in_order:
            return None
        wanted = _leading(self.queries, batch, i).squeeze(-1)  # [q] or [n, q]
        ids = _leading(self.keys, batch, torch.arange(keys, device=i.device))  # [k] or [n, 1, k]
        if ids.dim() > 1 or wanted.dim() > 1:
            lead = torch.broadcast_shapes(ids.shape[:-2], wanted.shape[:-1])
            ids, wanted = ids.reshape(-1, keys).expand(*lead, keys), wanted.expand(*lead, wanted.shape[-1])
        start, stop = (
            torch.searchsorted(ids.contiguous(), wanted.contiguous(), right=right) for right in (False, True)
        )
        return start[..., None], stop[..., None]

    def __repr__(self) -> str:
        return f"documents({_brief(self.queries)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.queries.shape[:-1]), self.queries.shape[-1], self.keys.shape[-1]


def documents(ids: list[int] | Int[Tensor, "*batch q"], keys: Int[Tensor, "*batch k"] | None = None) -> Mask:
    """A query sees the keys of its own document: ids `[T]` or `[B, T]`, of the keys too unless `keys` gives theirs."""
    queries = torch.as_tensor(ids)
    return Documents(queries, queries if keys is None else torch.as_tensor(keys))


class Dense(Mask):
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
            hint = (
                "; for keys that are filling use padding(lengths), or mask[..., None, :]"
                if shape[-1:] == (keys,)
                else ""
            )
            raise ValueError(f"mask of shape {list(shape)} does not broadcast to [..., T_q, T_k] = {list(full)}{hint}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return pick(self.seen, batch, i, j)

    def dense(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor:
        check_device("the mask", self.seen, device)
        return self.seen

    def tensors(self) -> list[Tensor]:
        return [self.seen]

    def placed(self, place: Callable[[Tensor], Tensor]) -> Mask:
        return Dense(place(self.seen))

    def __repr__(self) -> str:
        return f"dense({_brief(self.seen)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        *batch, queries, keys = self.seen.shape
        return tuple(batch), queries, keys


def dense(seen: Bool[Tensor, "*batch q k"]) -> Mask:
    """A boolean tensor that broadcasts to [..., T_q, T_k]; True where a query may see a key."""
    return Dense(seen)


class _Pair(Mask):
    sign = ""

    def __init__(self, left: Mask, right: Mask) -> None:
        self.left, self.right = left, right

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        self.left.check(batch, queries, keys)
        self.right.check(batch, queries, keys)

    def tensors(self) -> list[Tensor]:
        return self.left.tensors() + self.right.tensors()

    def placed(self, place: Callable[[Tensor], Tensor]) -> Mask:
        return type(self)(self.left.placed(place), self.right.placed(place))

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        # The one that knows most about its shape decides; masks without a shape of their own say 8 × 8.
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


class Or(_Pair):
    sign = "|"

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return self.left(batch, i, j) | self.right(batch, i, j)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        # Two intervals join into one when both begin at the first key, which can be known without looking at data.
        if not (_from_first(self.left) and _from_first(self.right)):
            return None
        left, right = self.left.bounds(batch, i, keys), self.right.bounds(batch, i, keys)
        if left is None or right is None:
            return None
        return torch.minimum(left[0], right[0]), torch.maximum(left[1], right[1])


class Not(Mask):
    def __init__(self, inner: Mask) -> None:
        self.inner = inner

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        self.inner.check(batch, queries, keys)

    def tensors(self) -> list[Tensor]:
        return self.inner.tensors()

    def placed(self, place: Callable[[Tensor], Tensor]) -> Mask:
        return Not(self.inner.placed(place))

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return ~self.inner(batch, i, j)

    def __invert__(self) -> Mask:
        return self.inner

    def __repr__(self) -> str:
        return f"~{self.inner!r}"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return self.inner.example()


def interval(
    mask: Mask, entries: Int[Tensor, " n"], queries: Int[Tensor, " q"], energies: EnergyMatrix
) -> Interval | None:
    """`bounds` of some matrices and queries as kernels take them: start and stop, each [n or 1, q or 1]."""
    found = mask.bounds(unravel(entries, energies.batch), queries[:, None], energies.keys)
    if found is None:
        return None
    # A rule about rows alone gives [q, 1], one about the batch [n, 1, 1], one about neither [].
    start, stop = (x.reshape(*[1] * (3 - x.dim()), *x.shape).squeeze(-1) for x in torch.broadcast_tensors(*found))
    return start, stop


def _from_first(mask: Mask) -> bool:
    """Whether every interval of this mask begins at key 0."""
    if isinstance(mask, And | Or):
        return _from_first(mask.left) and _from_first(mask.right)
    return isinstance(mask, Causal | Padding)


def _leading(tensor: Tensor, batch: Batch, last: Tensor | None = None) -> Tensor:
    """Entries of a tensor whose dimensions belong to the first leading dimensions, then (optionally) to `last`."""
    # Lengths and ids are small and often made on the CPU; they follow the inputs.
    tensor = tensor.to(next((x.device for x in (*batch, last) if x is not None), tensor.device))
    if tensor.dim() == 0:
        return tensor
    own = tensor.dim() - (last is not None)
    chosen = [*batch[:own], *([] if last is None else [last])]
    return tensor[tuple(x if n > 1 else torch.zeros_like(x) for n, x in zip(tensor.shape, chosen, strict=True))]


def _check_whole(what: str, given: object) -> None:
    if not isinstance(given, int):
        raise TypeError(f"{what} is a whole number, got {given!r}")


def _check_leading(what: str, shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    if len(shape) > len(batch) or any(n not in (1, m) for n, m in zip(shape, batch, strict=False)):
        raise ValueError(f"{what} of leading shape {list(shape)}; the attention's leading shape is {list(batch)}")


def _brief(tensor: Tensor) -> str:
    return str(tensor.tolist()) if tensor.numel() <= 8 else f"{tensor.dtype} {list(tensor.shape)}"
