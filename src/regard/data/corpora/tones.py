"""Generated sounds: noise with one short tone that rises, falls or stays level, and the time of the tone."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Literal

from ..rows import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from jaxtyping import Int16

SHAPES = ("rising", "falling", "steady")
RATE, SECONDS = 8000, 1.0
_NAME = re.compile(r"tone:(rising|falling|steady):(\d{1,18})")


def pairs(count: int, seed: int = 0, *, split: Literal["train", "test"] = "train") -> Iterator[Pair]:
    """Names of sounds that `SoundReader` can read, and their labels; no sound is in both splits."""
    if count < 0:
        raise ValueError(f"the number of sounds is at least 0, got {count}")
    chance = random.Random(f"tones {split} {seed}")
    for row in range(count):
        shape = chance.choice(SHAPES)
        number = 2 * chance.randrange(1 << 50) + (split == "test")
        yield Pair(f"tone:{shape}:{number}", shape, row)


def is_tone(name: str) -> bool:
    return name.startswith("tone:")


def place(name: str) -> tuple[float, float]:
    """When the tone begins and ends, in seconds."""
    _, chance = _drawn(name)
    begin, length = _when(chance)
    return begin, begin + length


def sound(name: str) -> Int16[np.ndarray, "samples"]:
    """The sound of this name, the same every time: one second of noise with the tone in it.

    The pitch moves by an octave, evenly on the scale the ear hears; it begins and ends without a click.
    """
    import numpy as np

    shape, chance = _drawn(name)
    begin, length = _when(chance)
    noise = np.random.default_rng(chance.getrandbits(64)).standard_normal(int(RATE * SECONDS))
    pitch, loud = chance.uniform(300.0, 1500.0), chance.uniform(0.08, 0.25)
    time = np.arange(round(length * RATE)) / RATE
    octaves = {"rising": time / length, "falling": 1 - time / length, "steady": np.full_like(time, 0.5)}[shape]
    phase = 2 * np.pi * np.cumsum(pitch * 2.0**octaves) / RATE
    wave = 0.05 * noise
    at = round(begin * RATE)
    wave[at : at + len(time)] += loud * np.sin(np.pi * time / length) * np.sin(phase)
    return np.round(wave * 32768).clip(-32768, 32767).astype(np.int16)


def _drawn(name: str) -> tuple[str, random.Random]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r:.60} names no tone; names look like tone:rising:17, with {', '.join(SHAPES)}")
    return match[1], random.Random(match[2])


def _when(chance: random.Random) -> tuple[float, float]:
    length = chance.uniform(0.15, 0.30)
    return chance.uniform(0.0, SECONDS - length), length
