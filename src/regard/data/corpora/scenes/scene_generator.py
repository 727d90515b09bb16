"""Generated scenes. The name of a scene determines it, so that nothing is stored on disk."""

from __future__ import annotations

import zlib
from random import Random
from typing import TYPE_CHECKING, Literal, get_args

from ...pair import Pair
from .scene import COLOURS, COUNTS, RADII, PlacedShape, Scene, ShapeGroup
from .shapes import SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from jaxtyping import UInt8

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
