"""Shapes as signed distances: how far a point is from the edge, negative inside; and anti-aliased drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Distance = Callable[[Numbers, Numbers], Numbers]

_SLOPE = 3**0.5 / 2


def _circle(x: Numbers, y: Numbers) -> Numbers:
    return np.hypot(x, y) - 1


def _square(x: Numbers, y: Numbers) -> Numbers:
    return np.maximum(np.abs(x), np.abs(y)) - 0.9


def _triangle(x: Numbers, y: Numbers) -> Numbers:
    return np.maximum(_SLOPE * np.abs(x) - 0.5 * y, y) - 0.55  # three half planes, y downwards


def _cross(x: Numbers, y: Numbers) -> Numbers:
    x, y = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(x - 1, y - 0.35), np.maximum(x - 0.35, y - 1))


def _ring(x: Numbers, y: Numbers) -> Numbers:
    return np.abs(np.hypot(x, y) - 0.75) - 0.25


SHAPES: dict[str, Distance] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "ring": _ring,
}
"""Each for a radius of 1 around the origin."""


def coverage(
    shape: str, radius: float, turn: float, x: Float[np.ndarray, "1 w"], y: Float[np.ndarray, "h 1"]
) -> Float[np.ndarray, "h w"]:
    """How much of each pixel, centred at (x, y) as seen from the shape's middle, the shape covers: 0 to 1.

    A pixel whose middle is d outside the edge is covered to 1/2 − d, which is exact where the edge is straight and
    runs along the pixels, and close enough elsewhere.
    """
    cosine, sine = np.cos(turn) / radius, np.sin(turn) / radius
    distance = SHAPES[shape](cosine * x + sine * y, cosine * y - sine * x)
    return np.clip(0.5 - radius * distance, 0, 1)
