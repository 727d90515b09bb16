"""Position encodings: sinusoidal (sequences, grids) and learned, added to embeddings; rotary, for queries and keys.

`regard.Rotary` rotates inside an energy; `regard.Alibi` and `regard.RelativeBias` add to energies. `print` draws each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..attention.modifiers import BASE, Position, angles, geometric_rates, mean_cosine, rotate

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


def sinusoids(positions: Int[Tensor, " t"], width: int, base: float = BASE) -> Float[Tensor, "t width"]:
    """The table of sinusoidal positions, in float64 where the device has it: sin and cos take turns."""
    angle = angles(positions, geometric_rates(width // 2, base, positions.device))  # [t, width/2]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


class SinusoidalPositions(nn.Module, Position):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d)) (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"Sinusoidal positions need an even width, got {width}")
        self.width = width

    def forward(self, x: Float[Tensor, "*batch time width"], first: int = 0) -> Float[Tensor, "*batch time width"]:
        positions = torch.arange(first, first + x.shape[-2], device=x.device)
        return x + sinusoids(positions, self.width).to(x.dtype)

    def matrix(self, count: int) -> Float[Tensor, "count width"]:
        return sinusoids(torch.arange(count), self.width)

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "1 n"]:
        # PE(p)·PE(p + d) = Σ_i cos(d · rate_i): the same at every p.
        return mean_cosine(distances, geometric_rates(self.width // 2, BASE))

    def extra_repr(self) -> str:
        return str(self.width)


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


class LearnedPositions(nn.Module, Position):
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

    def matrix(self, count: int) -> Float[Tensor, "count width"]:
        return self.table[:count]

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "1 n"]:
        """The mean over all pairs of positions this far apart; 0 where there are none."""
        unit = nn.functional.normalize(self.table.detach().cpu(), dim=-1)
        products = unit @ unit.mT  # [longest, longest]
        pairs = [products.diagonal(int(d)) for d in distances.clamp(-self.longest, self.longest)]
        return torch.stack([pair.mean() if pair.numel() else pair.sum() for pair in pairs])[None]

    def extra_repr(self) -> str:
        return f"{self.table.shape[1]}, {self.longest}"


def absolute_positions(kind: str, width: int, longest: int) -> nn.Module | None:
    """The positions that are added to embeddings; None for "none", and for those that act inside attention."""
    if kind == "sinusoidal":
        return SinusoidalPositions(width)
    return LearnedPositions(width, longest) if kind == "learned" else None


class RotaryPositions(nn.Module, Position):
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
        return rotate(x, angles(positions, geometric_rates(self.width // 2, BASE, x.device)))

    def matrix(self, count: int) -> Float[Tensor, "count planes"]:
        """The cosine of each plane's angle."""
        return angles(torch.arange(count), geometric_rates(self.width // 2, BASE)).cos()

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "1 n"]:
        return mean_cosine(distances, geometric_rates(self.width // 2, BASE))

    def extra_repr(self) -> str:
        return str(self.width)
