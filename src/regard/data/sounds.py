"""Sounds into samples: WAV, FLAC and whatever else `soundfile` reads, at one rate, in one channel."""

from __future__ import annotations

import re
from os.path import isfile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from . import tones
from .resample import resample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int16

LONGEST = 60.0  # seconds; what is longer is a recording to be cut up, or an attack
MOST = 32_000_000  # samples of all channels: a minute of stereo at 192 kHz has 23 million
FAINT = 33  # of the 32,768 that a sample may be: −60 dB
BRIEF = 0.05  # seconds; the shortest words last twice as long
_BLOCK = 1 << 16
_STRETCH = re.compile(r"(.+)#(\d{1,15}):(\d{1,15})")


class Sounds:
    """The reader of sounds: file names in, 16-bit samples at `rate` out.

    Channels are averaged, other rates resampled. `FILE#START:LENGTH` is a stretch of a file, counted in its own
    samples; `tone:…` is a sound of `data/tones.py`. What cannot be read is a ValueError that names the file.
    """

    kind: ClassVar[str] = "sound"
    dtype: ClassVar[str] = "<i2"
    shape = None

    def __init__(self, rate: int = tones.RATE) -> None:
        if type(rate) is not int or rate < 100:
            raise ValueError(f"a rate is a number of samples per second, at least 100; got {rate!r}")
        self.rate = rate
        self.stride = rate // 100  # a token of a batch is a hundredth of a second, a frame of the log-mel energies

    def to_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def encode(self, source: str) -> Int16[np.ndarray, "samples"]:
        if tones.is_tone(source):
            x, rate = tones.sound(source) / 32768.0, tones.RATE
        else:
            x, rate = _read(source)
        y = resample(x.astype(np.float32), rate, self.rate)
        return np.round(y * 32768).clip(-32768, 32767).astype(np.int16)

    def encode_batch(self, sources: Sequence[str]) -> list[Int16[np.ndarray, "samples"]]:
        return [self.encode(source) for source in sources]


def unheard(samples: Int16[np.ndarray, "samples"], rate: int) -> str | None:
    """Why there is nothing to hear in a sound, if so: whatever a model makes of it is no answer."""
    if len(samples) < BRIEF * rate:
        return f"it lasts {1000 * len(samples) / rate:.1f} milliseconds"
    if int(samples.max()) - int(samples.min()) < 2 * FAINT:  # what stays at one height is silent at any
        return "it is silent"
    return None


def _read(source: str) -> tuple[Float[np.ndarray, "samples"], int]:
    """The samples of a file or of a stretch of one, between −1 and 1, and their rate."""
    try:
        import soundfile
    except ModuleNotFoundError as missing:
        raise ValueError(f"{source}: reading sounds needs soundfile: pip install 'regard[sound]'") from missing
    stretch = None if isfile(source) else _STRETCH.fullmatch(source)
    file, start, length = (source, 0, None) if stretch is None else (stretch[1], int(stretch[2]), int(stretch[3]))
    if not isfile(file):
        raise ValueError(f"there is no file {file:.200}")
    try:
        with soundfile.SoundFile(file) as sound:
            rate, there = int(sound.samplerate), int(sound.frames)
            length = there - start if length is None else length
            if start + length > there:
                raise ValueError(f"{source}: the stretch ends past the end: the sound has {there:,} samples")
            if length > LONGEST * rate:
                raise ValueError(
                    f"{source} lasts {length / rate:,.0f} seconds; at most {LONGEST:.0f} are read: cut it, or name a "
                    f"stretch of it in samples, {file}#START:LENGTH"
                )
            if length * sound.channels > MOST:
                raise ValueError(
                    f"{source} holds {length * sound.channels:,} numbers ({sound.channels} channels, {rate:,} Hz); at "
                    f"most {MOST:,} are read: save it with fewer channels, or at a lower rate"
                )
            sound.seek(start)
            parts = [part.mean(1) for part in sound.blocks(_BLOCK, frames=length, dtype="float32", always_2d=True)]
            x = np.concatenate([*parts, np.zeros(0, np.float32)])
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{file} is no sound that can be read (WAV, FLAC, OGG, …): {error}") from error
    if not len(x):
        raise ValueError(f"{source} is empty: it holds not one sample")
    if not np.isfinite(x).all():
        wrong = int(np.flatnonzero(~np.isfinite(x))[0])
        raise ValueError(f"{source}: sample {start + wrong:,} is not a number; record or export it again")
    return x, rate
