"""Indices of a block of the attention matrix: which batch entries, which queries, which keys.

Masks and score modifiers are functions of them, so that one definition serves a whole matrix, one tile of it, and
FlexAttention's `mask_mod` and `score_mod`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .torch_transforms import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Batch = tuple[Tensor, ...]
    Index = slice | Tensor


def grid(batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> tuple[Batch, Tensor, Tensor]:
    """Index tensors of the whole matrix, each with its own dimension: they broadcast to [*batch, q, k]."""
    dims = len(batch) + 2
    leading = tuple(
        torch.arange(n, device=device).view(*[-1 if d == axis else 1 for d in range(dims)])
        for axis, n in enumerate(batch)
    )
    return leading, torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)


def positions(index: Index, device: torch.device) -> Tensor:
    """The indices as a tensor [n]. Slices have a start and a stop, because `slice.indices` cannot be compiled."""
    return torch.arange(index.start, index.stop, device=device) if isinstance(index, slice) else index


def span(indices: Sequence[int], device: torch.device) -> Index:
    """A slice where the indices are a range, so that indexing gives a view; else a tensor."""
    if isinstance(indices, range) and indices.step == 1:
        return slice(indices.start, indices.stop)
    return torch.tensor(indices, dtype=torch.int64, device=device)


def unravel(index: Tensor, batch: tuple[int, ...]) -> Batch:
    """Index tensors [n, 1, 1] into each leading dimension, from indices [n] into all of them flattened."""
    return tuple(part[:, None, None] for part in digits(index, batch))


def digits(index: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The indices into each of several dimensions, from an index into all of them flattened."""
    parts: list[Tensor] = []
    for size in reversed(sizes):
        parts.append(index % size)
        index = index // size
    return parts[::-1]


def at_each_index(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of scalars at every entry of tensors that broadcast: `torch.vmap` over each of their dimensions.

    FlexAttention calls `mask_mod` and `score_mod` in the same way, so what they may contain is the same.
    """
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    if not shape:
        return function(*tensors)
    wide = [x.reshape(*[1] * (len(shape) - x.dim()), *x.shape) for x in tensors]
    for dim in reversed(range(len(shape))):
        if shape[dim] > 1:
            function = torch.vmap(function, tuple(0 if x.shape[dim] > 1 else None for x in wide))
    own = [x.reshape([n for n in x.shape if n > 1]) for x in wide]
    with _ScalarIndices() if torch.compiler.is_exporting() else nullcontext():
        return function(*own).reshape(shape)


class _ScalarIndices(TorchFunctionMode):
    """`table[i]` with scalars i as an index operation: torch.export would read their numbers, which vmap refuses."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(x, torch.Tensor) for x in index):
                return torch.ops.aten.index.Tensor(args[0], index)
        return function(*args, **(kwargs or {}))


def batch_and_head(batch: Batch, like: Tensor) -> tuple[Tensor, Tensor]:
    """FlexAttention's b and h from at most two leading indices; 0 for those that there are not."""
    zero = torch.zeros((), dtype=like.dtype, device=like.device)
    b, h = (*batch, *[zero] * (2 - len(batch)))
    return b, h


def check_batch_and_head(what: str, batch: tuple[int, ...]) -> None:
    if len(batch) > 2:
        raise ValueError(
            f"{what} takes one batch index and one head index, for inputs [B, heads, T, D]; the leading shape is "
            f"{list(batch)}. Flatten it to two dimensions"
        )


def pick(tensor: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
    """Entries of a tensor that broadcasts to [*batch, q, k], at these indices."""
    check_device("a mask or bias", tensor, i.device)
    leading = tensor.shape[:-2]
    indices = [*(batch[len(batch) - len(leading) :]), i, j]
    # A dimension of size one is broadcast.
    return tensor[tuple(x if n > 1 else torch.zeros_like(x) for n, x in zip(tensor.shape, indices, strict=True))]


def check_device(what: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{what} is on {tensor.device}, the inputs are on {device}; move it with .to({str(device)!r})")


def fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` broadcasts to exactly `full`."""
    return len(shape) <= len(full) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(full), strict=False))


def select(index: int | slice | Sequence[int], among: Sequence[int], what: str) -> Sequence[int]:
    """The entries of `among` at an index, slice or list of indices, which may be negative as in Python."""
    if isinstance(index, slice):
        selected: Sequence[int] = among[index]
    else:
        indices = [index] if isinstance(index, int) else list(index)
        wrong = [x for x in indices if not -len(among) <= x < len(among)]
        if wrong:
            raise IndexError(f"{what} {wrong[0]} is out of range: there are {len(among)}")
        selected = as_range([among[x] for x in indices])
    if not len(selected) and len(among):
        raise IndexError(f"no {what} chosen: {index} of {len(among)}")
    return selected


def as_range(indices: list[int]) -> Sequence[int]:
    """A range where the indices are consecutive, so that indexing gives a view."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return range(indices[0], indices[0] + len(indices))
    return indices


def brief(tensor: Tensor) -> str:
    """The values of a small tensor, the type and shape of a large one."""
    return str(tensor.tolist()) if tensor.numel() <= 8 and readable(tensor) else f"{tensor.dtype} {list(tensor.shape)}"
