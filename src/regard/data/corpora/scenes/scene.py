"""One scene: groups of like things, the words that describe them, and the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .shapes import coverage

if TYPE_CHECKING:
    from jaxtyping import UInt8

COLOURS = {
    "red": (215, 40, 45),
    "orange": (245, 140, 25),
    "yellow": (245, 225, 50),
    "green": (45, 160, 65),
    "blue": (45, 85, 215),
    "purple": (140, 55, 165),
}
RADII = {"small": 6.0, "": 8.0, "large": 10.0}  # "": medium, which captions do not mention
COUNTS = {1: "a", 2: "two", 3: "three"}
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses", "ring": "rings"}


class Box(NamedTuple):
    """Part of a picture, in shares of its width and height: left ≤ x < right, top ≤ y < bottom, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x < self.right and self.top <= y < self.bottom


class CaptionWord(NamedTuple):
    """A word of a caption and its regions in the picture; no boxes for a word without a place, such as "a"."""

    text: str
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class PlacedShape:
    """The position of one shape, as a share of the picture, its size and its rotation."""

    x: float
    y: float
    radius: float
    turn: float

    @property
    def box(self) -> Box:
        r = self.radius
        return Box(self.x - r, self.y - r, self.x + r, self.y + r)


@dataclass(frozen=True)
class ShapeGroup:
    """One to three things of one shape, colour and size."""

    shape: str
    colour: str
    size: str  # "small", "large" or ""
    things: tuple[PlacedShape, ...]

    @property
    def words(self) -> list[CaptionWord]:
        """ "two small blue squares": the size, the colour and the shape are where the things are.

        The number is nowhere in particular: no single place shows how many there are.
        """
        boxes = tuple(thing.box for thing in self.things)
        count = len(self.things)
        texts = [self.size] if self.size else []
        texts += [self.colour, self.shape if count == 1 else PLURALS[self.shape]]
        number = "an" if count == 1 and texts[0] == "orange" else COUNTS[count]
        return [CaptionWord(number), *(CaptionWord(text, boxes) for text in texts)]


@dataclass(frozen=True)
class Scene:
    """One group, or two and how the first stands to the second; larger things are named first, then upper or left ones.

    `ground` is what the rest of the picture looks like: the grey of its upper left and of its lower right corner.
    `seed` decides the grain and the shades of the colours.
    """

    groups: tuple[ShapeGroup, ...]
    relation: str  # "above", "below", "left of", "right of"; "" for one group
    ground: tuple[float, float]
    seed: int

    @property
    def words(self) -> list[CaptionWord]:
        first, *others = (group.words for group in self.groups)
        between = [CaptionWord(text) for text in self.relation.split()]
        return first + [word for other in others for word in (*between, *other)]

    @property
    def caption(self) -> str:
        return " ".join(word.text for word in self.words)

    def picture(self, size: int) -> UInt8[np.ndarray, "size size 3"]:
        chance = np.random.default_rng(self.seed)
        grain = chance.normal(0, 3, (size, size, 1))
        slope = np.linspace(0, 0.5, size)
        light = slope[:, None] + slope  # [size, size]: 0 in the upper left corner, 1 in the lower right
        canvas = np.repeat((self.ground[0] + light * (self.ground[1] - self.ground[0]))[..., None], 3, axis=2)
        for group in self.groups:
            for thing in group.things:
                shade = np.array(COLOURS[group.colour]) + chance.normal(0, 8, 3)
                _draw(canvas, group.shape, thing, shade)
        return np.clip(canvas + grain, 0, 255).round().astype(np.uint8)


def _draw(canvas: np.ndarray, shape: str, thing: PlacedShape, shade: np.ndarray) -> None:
    """Paint a shape over the picture; only the pixels it may cover are computed."""
    size = len(canvas)
    x, y, radius = thing.x * size, thing.y * size, thing.radius * size
    reach = 1.3 * radius + 1  # the corners of a square
    left, top = max(int(x - reach), 0), max(int(y - reach), 0)
    part = canvas[top : int(y + reach) + 1, left : int(x + reach) + 1]
    across = np.arange(part.shape[1])[None] + (left + 0.5 - x)
    down = np.arange(part.shape[0])[:, None] + (top + 0.5 - y)
    covered = coverage(shape, radius, thing.turn, across, down)[..., None]
    part += covered * (shade - part)
