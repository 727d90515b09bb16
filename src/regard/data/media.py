"""Pictures and sounds as tensors."""

from __future__ import annotations

import math
import re
import struct
import warnings
import zipfile
from os.path import getsize, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from ..wording import count_of
from .corpora import scenes, tones

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float, Int16, UInt8

T = TypeVar("T")
MOST = 64_000_000  # pixels of a file; more is too large, or an attack
LARGEST = 1024  # pixels a side of what a model is given
# Of all that Pillow opens: rasters that it unpacks itself. For an EPS it would start Ghostscript, whatever the file's
# name says. An MPO, the photograph of a telephone, is opened as a JPEG.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")


class PictureReader:
    """Reads pictures as [size, size, 3] red, green and blue bytes: the whole picture, whatever its proportions were.

    A source is the path of a file, of a file inside a zip archive ("photos.zip/name.jpg"), or the name of a scene
    ("scene:test:0:17"). A picture is turned as its EXIF orientation says; what is transparent becomes white; 16 bits
    become 8; of an animation the first frame is taken. What cannot be read is a ValueError that begins with the source.
    """

    kind: ClassVar[str] = "picture"
    dtype: ClassVar[str] = "|u1"
    stride = 1

    def __init__(self, size: int) -> None:
        if type(size) is not int or not 1 <= size <= LARGEST:
            raise ValueError(f"pictures have 1 to {LARGEST} pixels a side, got {size!r:.20}")
        self.size = size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size, self.size, 3

    def to_dict(self) -> dict[str, Any]:
        return {"size": self.size}

    def encode_batch(self, sources: Sequence[str]) -> list[UInt8[np.ndarray, "size size 3"]]:
        return [self.encode(source) for source in sources]

    def encode(self, source: str) -> UInt8[np.ndarray, "size size 3"]:
        if source.startswith("scene:"):
            return scenes.picture(source, self.size)

        def pixels(image: Any) -> UInt8[np.ndarray, "size size 3"]:
            from PIL import Image

            return np.asarray(_to_rgb(image).resize((self.size, self.size), Image.Resampling.BICUBIC))

        return _read(source, pixels)

    def proportions(self, source: str) -> tuple[int, int]:
        """Width and height of the picture in its file, upright."""
        if source.startswith("scene:"):
            return self.size, self.size
        width, height = _read(source, lambda image: _to_rgb(image).size)
        return width, height

    def remarks(self, source: str) -> list[str]:
        """Reasons to doubt a caption: one colour only, or one picture of several."""
        pixels = self.encode(source)
        remarks = []
        if (pixels == pixels[0, 0]).all():
            one_colour = "it is all one colour, so what the model makes of it means nothing"
            remarks.append(f"nothing is seen in {source}: {one_colour}")
        if not source.startswith("scene:") and _read(source, _is_animated):
            remarks.append(f"{source} holds several pictures, as an animation does; the first is taken")
        return remarks


def _read(source: str, take: Callable[[Any], T]) -> T:
    """Open a picture, call `take` with it, and turn every error into a ValueError that names the file."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as missing:
        raise ValueError("pictures need Pillow; install it with: pip install 'regard[pictures]'") from missing
    try:
        with _open_picture(source) as file, warnings.catch_warnings():
            if not file.peek(1):
                raise UnreadablePictureError("the file is empty")
            # Pillow warns of large pictures and refuses the largest; `MOST` is less than either.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            Image.init()  # registers all formats; an older Pillow has no AVIF
            with Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
                return take(image)
    except UnreadablePictureError as error:
        why = str(error)
    except UnidentifiedImageError:
        why = f"not a picture that can be read ({', '.join(FORMATS)})"
    except Image.DecompressionBombError:
        why = f"it has far more than {MOST:,} pixels: make it smaller"
    except Exception as error:  # damaged files make Pillow raise almost anything
        missing_file = isinstance(error, OSError) and error.filename is not None
        why = str(error.strerror) if missing_file else f"the file is damaged or cut short: {error}"  # type: ignore[attr-defined]
    raise ValueError(f"{source}: {why}")


def _is_animated(image: Any) -> bool:
    # Photographs of telephones are MPO, with a preview after the photograph.
    return image.format != "MPO" and bool(getattr(image, "is_animated", False))


class UnreadablePictureError(ValueError):
    """Why a picture cannot be read; its name is added by the caller."""


def _open_picture(source: str) -> Any:
    """The file, or the file in an archive, opened for reading."""
    path = Path(source)
    if path.is_dir():
        raise UnreadablePictureError("this is a folder; name the pictures in it one by one")
    archive = next((parent for parent in path.parents if parent.suffix == ".zip" and parent.is_file()), None)
    if archive is None:
        return path.open("rb")
    try:
        return zipfile.ZipFile(archive).open(path.relative_to(archive).as_posix())
    except KeyError:
        raise UnreadablePictureError(f"there is no such file in {archive}") from None
    except zipfile.BadZipFile:
        raise UnreadablePictureError(f"{archive} is no zip archive") from None


def _to_rgb(image: Any) -> Any:
    """Upright, opaque, 8 bits, RGB."""
    from PIL import Image, ImageOps

    width, height = image.size
    if width * height > MOST:  # known from the header, before anything is unpacked
        raise UnreadablePictureError(f"it has {width:,} × {height:,} pixels; at most {MOST:,} in all: make it smaller")
    ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies the picture, turned or not
    if image.mode == "F":
        raise UnreadablePictureError("its pixels are floating-point numbers; save it with 8 or 16 bits a colour")
    if image.mode.startswith("I"):  # 16 bits of grey, or 32 that hold 16: Pillow would cut off what is above 255
        least, most = image.getextrema()
        if least < 0 or most > 65535:
            raise UnreadablePictureError(f"its pixels go from {least} to {most}; save it with 8 or 16 bits a colour")
        image = Image.fromarray(((np.asarray(image).astype(np.int32) + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")  # which would be a copy
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        return white
    return image.convert("RGB")


LONGEST = 60.0  # seconds; what is longer is a recording to be cut up, or an attack
MOST_SAMPLES = 32_000_000  # samples of all channels: a minute of stereo at 192 kHz has 23 million
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
    samples; `tone:…` is a sound of `data/corpora/tones.py`. What cannot be read is a ValueError that names the file.
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
            channels, rate = _read_sound(source)
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
    if not tones.is_tone(source) and np.ptp(_read_sound(source)[0], axis=0).max() * 32768 >= 2 * FAINT:
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


def _read_sound(source: str) -> tuple[Float[np.ndarray, "samples channels"], int]:
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
                most = f"at most {HIGHEST:,} are read: export it again at a lower rate"
                raise ValueError(f"{file} says it has {rate:,} samples per second; {most}")
            length = there - start if length is None else length
            if start + length > there:
                raise ValueError(f"{source}: the stretch ends past the end: the sound has {count_of(there, 'sample')}")
            if length > LONGEST * rate:
                most = f"at most {LONGEST:.0f} are read: cut it, or name a stretch of it in samples"
                raise ValueError(f"{source} lasts {length / rate:,.0f} seconds; {most}, {file}#START:LENGTH")
            if length * sound.channels > MOST_SAMPLES:
                numbers = f"{length * sound.channels:,} numbers ({count_of(sound.channels, 'channel')}, {rate:,} Hz)"
                most = f"at most {MOST_SAMPLES:,} are read: save it with fewer channels, or at a lower rate"
                raise ValueError(f"{source} holds {numbers}; {most}")
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
            name, promised = struct.unpack("<4sI", read.read(8).ljust(8, b"\0"))  # at the end of the file, none
            there = size - read.tell()
            if name == b"data" and there < promised < STREAMED:
                promise = f"its header promises {promised:,} bytes of sound, and {there:,} are there"
                raise ValueError(f"{file} is damaged or cut short: {promise}")
            if name == b"data" or there <= 0:
                return
            read.seek(promised + promised % 2, 1)
