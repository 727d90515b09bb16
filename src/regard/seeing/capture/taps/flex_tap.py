"""torch.nn.attention.flex_attention, uncompiled. Compiled, it is recorded through Hugging Face's interface only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import flex_attention as home

from ....attention import Mask
from .. import dispatch
from ..record import Record, dot_energies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from ....attention.block_indices import Batch
    from ....attention.energy_matrix import EnergyMatrix


def places() -> Iterator[tuple[tuple[Any, str], Callable[..., Any]]]:
    yield (home, "flex_attention"), tapped


def tapped(
    original: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: home.BlockMask | None = None,
    scale: float | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    result = original(query, key, value, score_mod, block_mask, scale, *args, **kwargs)
    out = result[0] if isinstance(result, tuple) else result

    def make() -> Record:
        energies = flex_energies(query, key, scale, score_mod, block_mask)
        return Record(energies, value.detach(), out.detach(), "flex_attention")

    dispatch.attempt(make)
    return result


def flex_energies(
    q: Tensor,
    k: Tensor,
    scale: float | None,
    score_mod: Callable[..., Tensor] | None,
    block_mask: home.BlockMask | None,
) -> EnergyMatrix:
    masks = () if block_mask is None else (MaskMod(block_mask.mask_mod),)
    energies = dot_energies(q, k, scale, masks=masks)
    return energies if score_mod is None else replace(energies, modifiers=(ScoreMod(score_mod),))


class MaskMod(Mask):
    """FlexAttention's mask_mod(b, h, i, j), written for single indices."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return _each(self.function, batch, i, j)

    def __repr__(self) -> str:
        return f"MaskMod({getattr(self.function, '__name__', '…')})"


class ScoreMod:
    """FlexAttention's score_mod(score, b, h, i, j)."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        return None

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return _each(self.function, batch, i, j, e).to(e.dtype)


def _each(function: Callable[..., Tensor], batch: Batch, i: Tensor, j: Tensor, *first: Tensor) -> Tensor:
    """A function of single indices at all of them. It may index tensors with them, so broadcasting will not do."""
    b, h = batch[-2:]
    all_ = torch.broadcast_tensors(*first, b, h, i, j)
    result: Tensor = torch.vmap(function)(*(x.flatten() for x in all_))
    return result.view(all_[0].shape)
