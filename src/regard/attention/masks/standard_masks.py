"""Masks by position (causal, window) and by what the sequences are (padding, prefix, documents)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from ..block_indices import brief, fits, grid, pick
from ..part import whole
from ..torch_transforms import is_known, readable
from .mask import Mask

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ..block_indices import Batch
    from .mask import Interval


CORNERS = "top-left", "bottom-right"


class Causal(Mask):
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
            _check_leading("causal has offsets", tuple(self.offset.shape), batch)

    def _last(self, batch: Batch, i: Tensor) -> Tensor:
        """The last key that each query sees."""
        if isinstance(self.offset, str):
            raise ValueError(f"{self!r} depends on the numbers of queries and keys; call resolve(queries, keys) first")
        return i + (_leading(self.offset, batch) if isinstance(self.offset, torch.Tensor) else self.offset)

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j <= self._last(batch, i)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = (self._last(batch, i) + 1).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if not isinstance(self.offset, torch.Tensor | str) and is_known(queries + self.offset >= keys):
            return None
        last = self._last(grid(batch, 0, 0, device)[0], torch.full((1, 1), 1, device=device) * (queries - 1))
        return _without_queries(torch.arange(keys, device=device) > last)

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


class Padding(Mask):
    starts_at_first = True

    def __init__(self, lengths: Tensor) -> None:
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"{type(self).__name__.lower()} needs whole lengths, got a tensor of {lengths.dtype}")
        self.lengths = lengths.to(torch.int64, copy=True)

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        name = type(self).__name__.lower()
        _check_leading(f"{name} has lengths", tuple(self.lengths.shape), batch)
        _check_lengths(name, self.lengths, keys, "keys")

    def length(self, batch: Batch) -> Tensor:
        return _leading(self.lengths, batch)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        return _without_queries(~self(*grid(batch, 1, keys, device)))

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return j < self.length(batch)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = self.length(batch).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def batch_bounds(self, batch: tuple[int, ...], keys: int, device: torch.device) -> Interval | None:
        # Called at every step of a decoder; index tensors would take longer than the attention itself.
        if self.lengths.shape != batch:
            return None
        stop = self.lengths.to(device).reshape(-1, 1).clamp(0, keys)
        return torch.zeros_like(stop), stop

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({brief(self.lengths)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        longest = int(self.lengths.max()) if self.lengths.numel() else 0
        return tuple(self.lengths.shape), max(longest, 1), max(longest, 1)


class QueryPadding(Mask):
    """Queries i < length are real; the rest see no key."""

    starts_at_first = True

    def __init__(self, lengths: Tensor) -> None:
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"padding needs whole lengths of the queries, got a tensor of {lengths.dtype}")
        self.lengths = lengths.to(torch.int64, copy=True)

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        _check_leading("padding has lengths of queries", tuple(self.lengths.shape), batch)
        _check_lengths("padding", self.lengths, queries, "queries")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return i < _leading(self.lengths, batch)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        stop = self(batch, i, i) * keys
        return torch.zeros_like(stop), stop

    def __repr__(self) -> str:
        return f"padding(queries={brief(self.lengths)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        longest = int(self.lengths.max()) if self.lengths.numel() else 0
        return tuple(self.lengths.shape), max(longest, 8), 8


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
        return Padding(_whole_numbers(lengths))
    own = QueryPadding(_whole_numbers(queries))
    return own if lengths is None else Padding(_whole_numbers(lengths)) & own


class Prefix(Padding):
    """The same rule as padding; another name because it is used with `|`, to open keys rather than close them."""

    def example(self) -> tuple[tuple[int, ...], int, int]:
        batch, _, longest = super().example()
        return batch, 8, max(8, longest + 4)


def prefix(size: int | list[int] | Int[Tensor, " *batch"]) -> Mask:
    """Every query sees keys j < size: `causal() | prefix(n)` is the prefix language model's mask."""
    return Prefix(_whole_numbers(size))


class Documents(Mask):
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
            _check_leading(f"documents has {side}' ids", tuple(ids.shape[:-1]), batch)
            if ids.shape[-1] != length:
                raise ValueError(f"documents has ids for {ids.shape[-1]} {side}, there are {length}")

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return _leading(self.queries, batch, i) == _leading(self.keys, batch, j)

    def hidden(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Tensor | None:
        if self.keys is self.queries:
            return None  # every key is in the document of the query at its place
        leading, i, j = grid(batch, queries, keys, device)
        seen = self(leading, i, j).any(-2)
        return ~seen

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
        return f"documents({brief(self.queries)})"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.queries.shape[:-1]), self.queries.shape[-1], self.keys.shape[-1]


def documents(ids: list[int] | Int[Tensor, "*batch q"], keys: Int[Tensor, "*batch k"] | None = None) -> Mask:
    """A query sees the keys of its own document: ids `[T]` or `[B, T]`, of the keys too unless `keys` gives theirs."""
    queries = _whole_numbers(ids)
    return Documents(queries, queries if keys is None else torch.as_tensor(keys))


def _whole_numbers(x: int | list[int] | Tensor | None) -> Tensor:
    """A tensor of these numbers; an empty list, which PyTorch would make one of floats, has whole ones, too."""
    return torch.as_tensor(x, dtype=torch.int64 if isinstance(x, list) and not x else None)


def _leading(tensor: Tensor, batch: Batch, last: Tensor | None = None) -> Tensor:
    """Entries of a tensor whose dimensions belong to the first leading dimensions, then (optionally) to `last`."""
    # Lengths and ids are small and often made on the CPU; they follow the inputs.
    tensor = tensor.to(next((x.device for x in (*batch, last) if x is not None), tensor.device))
    if tensor.dim() == 0:
        return tensor
    own = tensor.dim() - (last is not None)
    chosen = [*batch[:own], *([] if last is None else [last])]
    return tensor[tuple(x if n > 1 else torch.zeros_like(x) for n, x in zip(tensor.shape, chosen, strict=True))]


def _without_queries(rule: Tensor) -> Tensor:
    """[*batch, k] from a rule [*batch, 1, k], or from one that has no dimension for queries."""
    return rule.squeeze(-2) if rule.dim() > 1 else rule


def _check_leading(what: str, shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    if len(shape) > len(batch) or any(n != 1 and n != m for n, m in zip(shape, batch, strict=False)):
        raise ValueError(
            f"{what} of leading shape {list(shape)}; the attention's leading shape is {list(batch)}. They belong to "
            "its first dimensions: [B] to the batch, [B, heads] to batch and heads"
        )


def _check_lengths(name: str, lengths: Tensor, most: int, what: str) -> None:
    # Checked only where reading is free: not on a GPU, and not for tensors without data.
    if lengths.device.type == "cpu" and lengths.numel() and readable(lengths):
        low, high = (int(x) for x in lengths.aminmax())
        if low < 0 or high > most:
            raise ValueError(f"{name} has lengths from {low} to {high}; there are {most} {what}")
