"""Scenes: small pictures of coloured shapes, what they show in words, and where in the picture each word is.

Captioners learn from them with nothing to download, and where they look can be scored, since the truth is known. The
name of a scene determines it, so that nothing is stored on disk.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from ..rows import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Float, UInt8
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Distance = Callable[[Numbers, Numbers], Numbers]

_SLOPE = 3**0.5 / 2


def _bar(along: Numbers, across: Numbers) -> Numbers:
    return np.maximum(along - 1, across - 0.35)


SHAPES: dict[str, Distance] = {
    "circle": lambda x, y: np.hypot(x, y) - 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - 0.9,
    "triangle": lambda x, y: np.maximum(_SLOPE * np.abs(x) - 0.5 * y, y) - 0.55,  # three half planes, y downwards
    "cross": lambda x, y: np.minimum(_bar(np.abs(x), np.abs(y)), _bar(np.abs(y), np.abs(x))),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.75) - 0.25,
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
        plural = "" if count == 1 else "es" if self.shape.endswith("s") else "s"
        texts += [self.colour, self.shape + plural]
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


Split = Literal["train", "test"]

SIZE = 64  # pixels, by default
HELD_OUT = 5  # one caption in so many belongs to the test split
_SLOTS = 3  # of a group, side by side: no two things overlap


def pairs(count: int, *, seed: int = 0, split: Split = "train") -> Iterator[Pair]:
    """Names of pictures, which `PictureReader` draws, and their captions; other seeds give other scenes.

    No caption of the test part is one of the training part, though every word is in both.
    """
    for number in range(count):
        name = f"scene:{split}:{seed}:{number}"
        yield Pair(name, scene(name).caption, number, name)


def scene(name: str) -> Scene:
    """The scene called "scene:SPLIT:SEED:NUMBER"."""
    parts = name.split(":")
    right = len(parts) == 4 and parts[0] == "scene" and parts[1] in get_args(Split)
    if not right or not all(part.isascii() and part.isdecimal() for part in parts[2:]):
        raise ValueError(
            f"{name!r:.60} is no scene; scenes are called scene:train:SEED:NUMBER or scene:test:SEED:NUMBER"
        )
    chance = Random(name)
    while True:
        made = _made(chance)
        if (zlib.crc32(made.caption.encode()) % HELD_OUT == 0) == (parts[1] == "test"):
            return made


def picture(name: str, size: int = SIZE) -> UInt8[np.ndarray, "size size 3"]:
    return scene(name).picture(size)


def _made(chance: Random) -> Scene:
    ground = chance.uniform(60, 235)
    shades = ground, min(max(ground + chance.uniform(-50, 50), 50), 245)
    if chance.random() < 0.25:
        groups, relation = [_group(chance, 0, 1, upright=False)], ""
    else:
        upright = chance.random() < 0.5
        groups = [_group(chance, half / 2, 0.5, upright=upright) for half in (0, 1)]
        relation = "above" if upright else "left of"
        if RADII[groups[1].size] > RADII[groups[0].size]:
            groups, relation = groups[::-1], "below" if upright else "right of"
    return Scene(tuple(groups), relation, shades, chance.getrandbits(32))


def _group(chance: Random, start: float, depth: float, *, upright: bool) -> ShapeGroup:
    """A group in the part of the picture that starts at `start` and is `depth` deep, downwards or (not upright) across.

    The other way the part has three slots, of which each thing takes one.
    """
    shape, colour = chance.choice(list(SHAPES)), chance.choice(list(COLOURS))
    size = chance.choice(list(RADII))
    count = chance.choice(list(COUNTS))
    things = []
    for slot in chance.sample(range(_SLOTS), count):
        radius = (RADII[size] + chance.uniform(-0.3, 0.3)) / SIZE
        along = chance.uniform(slot / _SLOTS + radius, (slot + 1) / _SLOTS - radius)
        deep = chance.uniform(start + radius, start + depth - radius)
        x, y = (along, deep) if upright else (deep, along)
        things.append(PlacedShape(x, y, radius, chance.uniform(-0.2, 0.2)))
    return ShapeGroup(shape, colour, size, tuple(things))
