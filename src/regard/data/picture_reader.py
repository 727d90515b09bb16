"""Pictures in, pixels out: files of the usual formats, squeezed into a square, and scenes of our own by their names."""

from __future__ import annotations

import contextlib
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from .corpora import scenes
from .picture_statistics import PictureStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jaxtyping import UInt8

T = TypeVar("T")
MOST = 64_000_000  # pixels of a file; more is too large, or an attack
STRIP = 1 << 20  # pixels that are converted together
LARGEST = 1024  # pixels a side of what a model is given
# Of all that Pillow opens: rasters that it unpacks itself. For an EPS it would start Ghostscript, whatever the file's
# name says. An MPO, the photograph of a telephone, is opened as a JPEG.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")


class PictureReader:
    """Reads pictures as [size, size, 3] red, green and blue bytes: the whole picture, whatever its proportions were.

    A source is the path of a file, of a file inside a zip archive ("photos.zip/name.jpg"), or the name of a scene
    ("scene:test:0:17"). A picture is turned as its EXIF orientation says; what is transparent becomes white; 16 bits
    become 8; of an animation the first frame is taken. What cannot be read is a ValueError that begins with the source.
    `typical` are the statistics of the pictures a model was trained on, if they are known.
    """

    kind: ClassVar[str] = "picture"
    dtype: ClassVar[str] = "|u1"
    stride = 1

    def __init__(self, size: int, typical: dict[str, Any] | None = None) -> None:
        if type(size) is not int or not 1 <= size <= LARGEST:
            raise ValueError(f"pictures have 1 to {LARGEST} pixels a side, got {size!r:.20}")
        self.size = size
        self.typical = None if typical is None else PictureStatistics.from_dict(typical)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size, self.size, 3

    def to_dict(self) -> dict[str, Any]:
        return {"size": self.size} | ({} if self.typical is None else {"typical": self.typical.to_dict()})

    def learn_typical(self, sources: Iterable[str]) -> None:
        """Remember what these pictures look like; those that cannot be read are left out."""
        pictures = []
        for source in sources:
            with contextlib.suppress(ValueError):
                pictures.append(self.encode(source))
        self.typical = PictureStatistics.of(pictures) if len(pictures) > 1 else None

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
        """Reasons to doubt a caption: one colour only, unlike the training pictures, or one picture of several."""
        pixels = self.encode(source)
        remarks = []
        if (pixels == pixels[0, 0]).all():
            remarks.append(
                f"nothing is seen in {source}: it is all one colour, so what the model makes of it means nothing"
            )
        elif self.typical is not None and self.typical.unlike(pixels):
            remarks.append(
                f"{source} is unlike the pictures this model was trained on (in brightness, colours, edges and plain "
                "areas), so what it makes of it means little"
            )
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
        return _in_strips(image, lambda strip: Image.fromarray((np.asarray(strip) / 257).round().astype(np.uint8)))
    if image.has_transparency_data:
        return _in_strips(image, _on_white)
    return image.convert("RGB")


def _on_white(image: Any) -> Any:
    from PIL import Image

    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))


def _in_strips(image: Any, change: Callable[[Any], Any]) -> Any:
    """An RGB copy of the picture, changed a few rows at a time: whole copies would take its memory thrice."""
    from PIL import Image

    width, height = image.size
    rows = max(1, STRIP // width)
    result = Image.new("RGB", image.size)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        result.paste(change(image.crop((0, top, width, bottom))).convert("RGB"), (0, top))
    return result
