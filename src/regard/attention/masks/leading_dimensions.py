"""Tensors of lengths, offsets and ids, whose dimensions belong to the first leading dimensions of the attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ..block_indices import Batch


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
