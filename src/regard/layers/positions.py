"""Position encodings: sinusoidal (sequences, grids) and learned, added to embeddings; rotary, for queries and keys.

ALiBi, which changes the energies instead, is `regard.Alibi`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def _angles(positions: Tensor, rates: int, base: float) -> Float[Tensor, "positions rates"]:
    """Position p turns at rate base^(−i/rates) in plane i."""
    planes = torch.arange(rates, device=positions.device, dtype=torch.float32)  # whatever the default is
    rate = torch.exp(planes * (-math.log(base) / rates))
    return positions[:, None].float() * rate


class SinusoidalPositions(nn.Module):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d)) (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"Sinusoidal positions need an even width, got {width}")
        self.width = width

    def forward(self, x: Float[Tensor, "*batch time width"], first: int = 0) -> Float[Tensor, "*batch time width"]:
        positions = torch.arange(first, first + x.shape[-2], device=x.device)
        angles = _angles(positions, self.width // 2, 10_000.0)  # [time, width/2]
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # sin and cos take turns
        return x + table.to(x.dtype)


class GridPositions(nn.Module):
    """Adds PE(row) to the first half of each cell's vector and PE(column) to the second (`SinusoidalPositions`)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"places in a plane need a width that 4 divides, got {width}")
        self.axis = SinusoidalPositions(width // 2)

    def forward(self, x: Float[Tensor, "batch rows columns width"]) -> Float[Tensor, "batch rows columns width"]:
        down, across = x.chunk(2, dim=-1)
        return torch.cat([self.axis(down.transpose(1, 2)).transpose(1, 2), self.axis(across)], dim=-1)


class LearnedPositions(nn.Module):
    """One learned vector per position, for sequences of at most `longest` (Gehring et al. 2017; BERT; GPT)."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.table = nn.Parameter(torch.empty(longest, width).normal_(std=width**-0.5))

    def forward(self, x: Float[Tensor, "*batch time width"], first: int = 0) -> Float[Tensor, "*batch time width"]:
        last = first + x.shape[-2]
        if last > self.longest:
            raise ValueError(f"a sequence reaches position {last}; this model learned {self.longest} positions")
        return x + self.table[first:last].to(x.dtype)


def absolute_positions(kind: str, width: int, longest: int) -> nn.Module | None:
    """The positions that are added to embeddings; None for rotary and ALiBi, which act inside attention."""
    if kind == "sinusoidal":
        return SinusoidalPositions(width)
    return LearnedPositions(width, longest) if kind == "learned" else None


class RotaryPositions(nn.Module):
    """Turns plane i of a query or key at position p by the angle p · 10000^(−2i/d) (Su et al. 2021, RoFormer).

    q_m · k_n then depends on where they stand only through m − n. The planes are (x_i, x_{i + d/2}).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"Rotary positions need heads of an even width, got {width}")
        self.width = width

    def forward(self, x: Float[Tensor, "*batch time width"], first: int = 0) -> Float[Tensor, "*batch time width"]:
        positions = torch.arange(first, first + x.shape[-2], device=x.device)
        angles = _angles(positions, self.width // 2, 10_000.0)  # [time, width/2]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
