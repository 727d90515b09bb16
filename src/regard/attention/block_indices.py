"""Indices of a block of the attention matrix: which batch entries, which queries, which keys.

Masks and score modifiers are functions of them, so that one definition serves a whole matrix, one tile of it, and
FlexAttention's `mask_mod` and `score_mod`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """The indices themselves, [n]. Slices say where they start and stop: `slice.indices` cannot be compiled."""
    return torch.arange(index.start, index.stop, device=device) if isinstance(index, slice) else index


def span(chosen: Sequence[int], device: torch.device) -> Index:
    """A slice where the indices follow one another, so that indexing is a view; else a tensor."""
    if isinstance(chosen, range) and chosen.step == 1:
        return slice(chosen.start, chosen.stop)
    return torch.tensor(chosen, device=device)


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


def pick(tensor: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
    """Entries of a tensor that broadcasts to [*batch, q, k], at these indices."""
    check_device("a mask or bias", tensor, i.device)
    leading = tensor.shape[:-2]
    chosen = [*(batch[len(batch) - len(leading) :]), i, j]
    # A dimension of size one stands for every index.
    return tensor[tuple(x if n > 1 else torch.zeros_like(x) for n, x in zip(tensor.shape, chosen, strict=True))]


def check_device(what: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{what} is on {tensor.device}, the inputs are on {device}; move it with .to({str(device)!r})")


def fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` broadcasts to exactly `full`."""
    return len(shape) <= len(full) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(full), strict=False))


def select(index: int | slice | Sequence[int], among: Sequence[int], what: str) -> Sequence[int]:
    """The selected ones of `among`, by Python's rules for negative indices and slices."""
    if isinstance(index, slice):
        picked: Sequence[int] = among[index]
    else:
        wanted = [index] if isinstance(index, int) else list(index)
        wrong = [x for x in wanted if not -len(among) <= x < len(among)]
        if wrong:
            raise IndexError(f"{what} {wrong[0]} is out of range: there are {len(among)}")
        picked = as_range([among[x] for x in wanted])
    if not len(picked):
        raise IndexError(f"no {what} chosen: {index} of {len(among)}")
    return picked


def as_range(indices: list[int]) -> Sequence[int]:
    """A range where the indices follow one another, so that cutting them out is a view."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return range(indices[0], indices[0] + len(indices))
    return indices


def brief(tensor: Tensor) -> str:
    """Its values where they are few, else its type and shape."""
    return str(tensor.tolist()) if tensor.numel() <= 8 else f"{tensor.dtype} {list(tensor.shape)}"
