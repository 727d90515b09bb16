"""Padding left out of a batch: layers that treat every position alike get the real positions, one below the other.

In a training batch of sentences about a tenth of the positions is padding, and linear maps, norms and dropout take as
long for it as for words. Attention still gets the padded batch, whose sentences have one shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..attention.torch_transforms import forward_mode, global_hooks, plain, traced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Float, Int
    from torch import Tensor

LARGEST_SHARE = 0.97
"""Of real positions. With less padding, copying takes as long as computing it."""
PADDED_CHILDREN = "padded_children"
"""A class with this attribute of its own (not of a base) computes each position alike, or knows the argument `real`.
It has the names of those children that get the padded batch all the same."""
POSITIONWISE = (nn.Linear, nn.LayerNorm, nn.ReLU, nn.Identity)
"""The classes of PyTorch that compute each position alike."""


class RealPositions:
    """Which positions of a padded batch are real: `pack` takes them out, `pad` puts them back between zeros."""

    def __init__(self, lengths: Int[Tensor, "batch"], time: int) -> None:
        real = torch.arange(time, device=lengths.device) < lengths[:, None]
        self._shape = real.shape
        flat = real.flatten()
        self._positions = flat.nonzero()[:, 0]  # [real]
        self._padding = (~flat).nonzero()[:, 0]
        self._sources = flat.cumsum(0).sub_(1).clamp_(min=0)  # of each position, where it is real

    @classmethod
    def in_training(cls, lengths: Int[Tensor, "batch"], time: int, parts: Iterable[nn.Module]) -> RealPositions | None:
        """Those of a batch that `parts` learn from on a CPU; None where leaving out the padding saves no time.

        On a GPU counting the real positions would wait for it, and their number would change the shapes of its graphs.
        A part of a class that is not known to compute each position alike gets the padded batch, and so does one with
        hooks. Dropout draws other numbers for the packed batch than for the padded one.
        """
        if lengths.device.type != "cpu" or traced() or forward_mode() or not plain(lengths) or not len(lengths):
            return None
        if int(lengths.clamp(0, time).sum()) > LARGEST_SHARE * time * len(lengths):
            return None
        if global_hooks() or not all(map(_takes_packed, parts)):
            return None
        return cls(lengths, time)

    def pack(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "real width"]:
        packed: Tensor = _Pack.apply(x.flatten(0, 1), self)
        return packed

    def pad(self, x: Float[Tensor, "real width"]) -> Float[Tensor, "batch time width"]:
        padded: Tensor = _Pad.apply(x, self)
        return padded.view(*self._shape, x.shape[1])

    # `index_select` copies whole rows; PyTorch's own gradient of it adds them up number by number.

    def _select(self, x: Float[Tensor, "positions width"]) -> Float[Tensor, "real width"]:
        return x.index_select(0, self._positions)

    def _spread(self, x: Float[Tensor, "real width"]) -> Float[Tensor, "positions width"]:
        if not len(x):
            return x.new_zeros(len(self._sources), x.shape[1])
        return x.index_select(0, self._sources).index_fill_(0, self._padding, 0)


def position_arguments(**positions: RealPositions | None) -> dict[str, Any]:
    """Those that are not None, as keyword arguments: a part that replaces one of ours gets padded batches, and need not
    know them."""
    return {name: each for name, each in positions.items() if each is not None}


def _takes_packed(part: nn.Module) -> bool:
    """Whether a part computes the same from real positions alone, and nothing observes or replaces its calls."""
    if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
        return False
    if (forward := vars(part).get("forward")) is not None and not hasattr(forward, PADDED_CHILDREN):
        return False
    if type(part) in POSITIONWISE:
        return True
    padded = vars(type(part)).get(PADDED_CHILDREN)
    return padded is not None and all(
        _takes_packed(child) for name, child in part.named_children() if name not in padded
    )


class _Pack(torch.autograd.Function):
    """Its transpose is `_Pad`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, real: RealPositions) -> Tensor:
        ctx.real = real
        return real._select(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Pad.apply(g, ctx.real), None


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, real: RealPositions) -> Tensor:
        ctx.real = real
        return real._spread(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Pack.apply(g, ctx.real), None
