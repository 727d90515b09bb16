"""Sounds into samples: WAV, FLAC and whatever else `soundfile` reads, at one rate, in one channel."""

from __future__ import annotations

import math
import re
import struct
from os.path import getsize, isfile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..noun_count import count_of
from .corpora import tones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int16

LONGEST = 60.0  # seconds; what is longer is a recording to be cut up, or an attack
MOST = 32_000_000  # samples of all channels: a minute of stereo at 192 kHz has 23 million
HIGHEST = 768_000  # samples per second; more is a damaged header, and resampling it fills the memory
FAINT = 33  # of the 32,768 that a sample may be: −60 dB
BRIEF = 0.05  # seconds; the shortest words last twice as long
EDGE = 0.005  # seconds at either end, where resampling makes a slope out of a beginning
STREAMED = 0x7FFFF000  # bytes; as much, or 0, is what programs write into a WAV whose length they do not know yet
CHUNKS = 1000  # of a WAV, at most, before its samples
CROSSINGS = 16  # of resampling: zero crossings of the sinc on each side; the passband is flat to a few thousandths
ROLL_OFF = 0.95  # of resampling: where the filter begins to close, as a share of half the lower rate
_STRETCH = re.compile(r"(.+)#(\d{1,15}):(\d{1,15})")


class SoundReader:
    """The reader of sounds: file names in, 16-bit samples at `rate` out.

    Channels are averaged, other rates resampled. `FILE#START:LENGTH` is a stretch of a file, counted in its own
    samples; `tone:…` is a sound of `data/tones.py`. What cannot be read is a ValueError that names the file.
    """

    kind: ClassVar[str] = "sound"
    dtype: ClassVar[str] = "<i2"
    shape = None

    def __init__(self, rate: int = tones.RATE) -> None:
        if type(rate) is not int or not 100 <= rate <= HIGHEST:
            raise ValueError(f"a rate is a number of samples per second, 100 to {HIGHEST:,}; got {rate!r}")
        self.rate = rate
        self.stride = rate // 100  # a token of a batch is a hundredth of a second, a frame of the log-mel energies

    def to_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def encode(self, source: str) -> Int16[np.ndarray, "samples"]:
        if tones.is_tone(source):
            x, rate = tones.sound(source) / 32768.0, tones.RATE
        else:
            channels, rate = _read(source)
            x = channels.mean(1)
        y = resample(x.astype(np.float32), rate, self.rate)
        return np.round(y * 32768).clip(-32768, 32767).astype(np.int16)

    def encode_batch(self, sources: Sequence[str]) -> list[Int16[np.ndarray, "samples"]]:
        return [self.encode(source) for source in sources]


def unheard(source: str, samples: Int16[np.ndarray, "samples"], rate: int) -> str | None:
    """Why a model's answer for this sound would mean nothing: it is too short, silent or constant. None otherwise."""
    if len(samples) < BRIEF * rate:
        return f"{source} lasts {1000 * len(samples) / rate:.1f} milliseconds, too short to judge"
    inside = samples[round(EDGE * rate) : -round(EDGE * rate)]
    if int(inside.max()) - int(inside.min()) >= 2 * FAINT:
        return None
    if not tones.is_tone(source) and np.ptp(_read(source)[0], axis=0).max() * 32768 >= 2 * FAINT:
        why = "its channels cancel each other when they are averaged"
    else:
        why = "it is constant" if abs(inside.mean()) >= FAINT else "it is silent"
    return f"nothing is heard in {source}: {why}"


def resample(x: Float[np.ndarray, "samples"], rate: int, wanted: int) -> Float[np.ndarray, "resampled"]:
    """y(t) = Σ_k x[k] h(t·rate − k), h a sinc under a Hann window, at the times t = n / wanted (Smith 1984).

    h is zero above half the lower rate, which prevents aliasing. The times fall into wanted / gcd phases between
    samples, each with its own filter.
    """
    if rate == wanted:
        return x
    common = math.gcd(rate, wanted)
    phases, step = wanted // common, rate // common
    cut = min(1.0, wanted / rate) * ROLL_OFF
    reach = math.ceil(CROSSINGS / cut)
    taps = np.arange(-reach, reach + 1)
    count = -(-len(x) * wanted // rate)
    padded = np.pad(x, (reach, reach + step + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(taps))
    y = np.empty(count, x.dtype)
    for phase in range(min(phases, count)):
        base, rest = divmod(phase * step, phases)  # the sample before, and how far past it, in phases
        u = taps - rest / phases
        h = cut * np.sinc(cut * u) * np.where(np.abs(u) < reach, 0.5 + 0.5 * np.cos(np.pi * u / reach), 0)
        rows = windows[base::step][: len(range(phase, count, phases))]
        y[phase::phases] = rows @ h.astype(x.dtype)
    return y


def _read(source: str) -> tuple[Float[np.ndarray, "samples channels"], int]:
    """The samples of a file or of a stretch of one, between −1 and 1, and their rate."""
    try:
        import soundfile
    except ModuleNotFoundError as missing:
        raise ValueError(f"{source}: reading sounds needs soundfile: pip install 'regard[sound]'") from missing
    stretch = None if isfile(source) else _STRETCH.fullmatch(source)
    file, start, length = (source, 0, None) if stretch is None else (stretch[1], int(stretch[2]), int(stretch[3]))
    if not isfile(file):
        raise ValueError(f"there is no file {file:.200}")
    _check_size(file)
    rate = 0
    try:
        with soundfile.SoundFile(file) as sound:
            rate, there = int(sound.samplerate), int(sound.frames)
            if rate > HIGHEST:
                raise ValueError(
                    f"{file} says it has {rate:,} samples per second; at most {HIGHEST:,} are read: export it again "
                    "at a lower rate"
                )
            length = there - start if length is None else length
            if start + length > there:
                raise ValueError(f"{source}: the stretch ends past the end: the sound has {count_of(there, 'sample')}")
            if length > LONGEST * rate:
                raise ValueError(
                    f"{source} lasts {length / rate:,.0f} seconds; at most {LONGEST:.0f} are read: cut it, or name a "
                    f"stretch of it in samples, {file}#START:LENGTH"
                )
            if length * sound.channels > MOST:
                raise ValueError(
                    f"{source} holds {length * sound.channels:,} numbers ({count_of(sound.channels, 'channel')}, "
                    f"{rate:,} Hz); at most {MOST:,} are read: save it with fewer channels, or at a lower rate"
                )
            sound.seek(start)
            x = sound.read(length, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        why = "is damaged or cut short" if rate else "is no sound that can be read (WAV, FLAC, OGG, …)"
        raise ValueError(f"{file} {why}: {error}") from error
    if len(x) < length:
        raise ValueError(f"{source} is damaged or cut short: of {count_of(length, 'sample')} {len(x):,} can be read")
    if not len(x):
        raise ValueError(f"{source} is empty: it has no samples")
    finite = np.isfinite(x).all(1)
    if not finite.all():
        wrong = start + int(finite.argmin())
        raise ValueError(f"{source}: sample {wrong:,} is not finite; record or export it again")
    return x, rate


def _check_size(file: str) -> None:
    """That a file holds what it promises: libsndfile reads what is left of a truncated WAV without an error.

    A WAV is "RIFF", its size, "WAVE", and chunks: a name, the number of bytes that follow, and those, padded to even.
    """
    size = getsize(file)
    if not size:
        raise ValueError(f"{file} is empty: it has no bytes")
    with open(file, "rb") as read:
        if not re.fullmatch(rb"RIFF....WAVE", read.read(12), re.DOTALL):
            return
        for _ in range(CHUNKS):
            head = read.read(8)
            if len(head) < 8:
                return
            name, promised = struct.unpack("<4sI", head)
            if name == b"data":
                there = size - read.tell()
                if there < promised < STREAMED:
                    raise ValueError(
                        f"{file} is damaged or cut short: its header promises {promised:,} bytes of sound, and "
                        f"{there:,} are there"
                    )
                return
            read.seek(promised + promised % 2, 1)
