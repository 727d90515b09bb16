"""Position: what sinusoidal, learned, rotary, ALiBi and T5's positions have in common. Each draws itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

SHADES = "·░▒▓█"
BARS = "▁▂▃▄▅▆▇█"


class Position:
    """A way to say where queries and keys stand. A subclass gives `by_distance`, and `matrix` if it has one."""

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "curves n"]:
        """What it does to the energy of a key `distances` = j − i away; one curve per head where heads differ.

        Vectors that are added or rotated: the cosine of the angle between the vectors of the two positions. A bias: the
        bias.
        """
        raise NotImplementedError

    def matrix(self, count: int) -> Float[Tensor, "count components"] | None:
        """The vectors of the first `count` positions; None where positions have no vectors."""
        return None

    def draw(self, count: int = 16, reach: int = 32) -> str:
        """The vectors of `count` positions (rows, light to dark), and the curves over distances up to ±`reach`."""
        lines = []
        vectors = self.matrix(count)
        if vectors is not None:
            lines += [f"positions 0 to {vectors.shape[0] - 1} down, components across", *_scaled(vectors, SHADES)]
        curves = self.by_distance(torch.arange(-reach, reach + 1))
        lines += [f"keys {reach} before the query to {reach} after it", *_scaled(curves, BARS)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self!r}\n{self.draw()}"


def _scaled(values: Float[Tensor, "rows columns"], levels: str) -> list[str]:
    """One character per number, the smallest of all numbers the first level and the largest the last."""
    values = values.detach().double().cpu()
    low, high = values.min(), values.max()
    share = (values - low) / (high - low).clamp_min(1e-12)
    steps = (share * len(levels)).long().clamp(0, len(levels) - 1)
    return ["".join(levels[step] for step in row) for row in steps.tolist()]
