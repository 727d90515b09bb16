"""Pictures as people have them: any mode, any orientation, and files that are none."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data import source_reader
from regard.data.corpora import scenes
from regard.data.picture_reader import PictureReader

READ = PictureReader(32)


def halves(mode: str = "RGB") -> Image.Image:
    """Left black, right white, 40 wide and 20 high."""
    pixels = np.zeros((20, 40), np.uint8)
    pixels[:, 20:] = 255
    return Image.fromarray(pixels).convert(mode)


def saved(folder: Path, image: Image.Image, name: str, **how: object) -> str:
    image.save(folder / name, **how)
    return str(folder / name)


def assert_halves(pixels: np.ndarray) -> None:
    assert pixels.shape == (32, 32, 3)
    assert pixels.dtype == np.uint8
    assert pixels[:, :12].max() < 40
    assert pixels[:, 20:].min() > 215


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "YCbCr"])
def test_every_mode_is_read(tmp_path: Path, mode: str) -> None:
    name = "a.png" if mode in ("RGB", "L", "1", "P") else "a.jpg"
    assert_halves(READ.encode(saved(tmp_path, halves(mode), name)))


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    pixels = np.zeros((20, 40), np.uint16)
    pixels[:, 20:] = 65535
    assert_halves(READ.encode(saved(tmp_path, Image.fromarray(pixels), "a.png")))
    grey = Image.fromarray(np.full((8, 8), 128 * 257, np.uint16))
    assert (READ.encode(saved(tmp_path, grey, "b.png")) == 128).all()  # not cut off at 255


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (40, 20), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 20, 20))
    assert_halves(READ.encode(saved(tmp_path, image, "a.png")))
    palette = halves("P")
    assert_halves(READ.encode(saved(tmp_path, palette, "b.png", transparency=palette.getpixel((39, 0)))))


def test_exif_says_how_it_was_held(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    turned = halves().transpose(Image.Transpose.ROTATE_90)
    assert_halves(READ.encode(saved(tmp_path, turned, "a.png", exif=exif)))


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [halves("L"), Image.new("L", (40, 20), 90)]
    assert_halves(READ.encode(saved(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])))


def test_what_to_know_before_one_believes_a_caption(tmp_path: Path) -> None:
    assert READ.remarks(saved(tmp_path, halves(), "a.png")) == []
    assert READ.remarks("scene:train:0:1") == []
    plain = saved(tmp_path, Image.new("RGB", (40, 20), "red"), "b.png")
    assert [remark.split(",")[0] for remark in READ.remarks(plain)] == [
        f"nothing is seen in {plain}: it is all one colour"
    ]
    frames = [halves("L"), Image.new("L", (40, 20), 90)]
    for name in ("a.gif", "a.webp", "a.tiff"):
        path = saved(tmp_path, frames[0], name, save_all=True, append_images=frames[1:])
        assert READ.remarks(path) == [f"{path} holds several pictures, as an animation does; the first is taken"]
    path = saved(tmp_path, halves(), "a.jpg", format="MPO", save_all=True, append_images=[halves()])
    assert READ.remarks(path) == []  # as a telephone writes it


def test_pictures_in_a_zip(tmp_path: Path) -> None:
    file = io.BytesIO()
    halves().save(file, "png")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("in/a.png", file.getvalue())
    assert_halves(READ.encode(str(tmp_path / "all.zip" / "in" / "a.png")))
    with pytest.raises(ValueError, match=r"b\.png: there is no such file in .*all\.zip"):
        READ.encode(str(tmp_path / "all.zip" / "b.png"))
    (tmp_path / "bad.zip").write_text("no archive")
    with pytest.raises(ValueError, match=r"bad\.zip is no zip archive"):
        READ.encode(str(tmp_path / "bad.zip" / "b.png"))


def test_scenes_are_drawn() -> None:
    name = "scene:train:0:1"
    drawn, larger = PictureReader(64).encode_batch([name])[0], PictureReader(96).encode_batch([name])[0]
    assert (drawn == scenes.picture(name)).all()
    assert larger.shape == (96, 96, 3)


def test_a_picture_cut_short_is_refused(tmp_path: Path) -> None:
    for kind in ("png", "jpg"):
        chance = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
        path = saved(tmp_path, Image.fromarray(chance), f"a.{kind}")
        whole = (tmp_path / f"a.{kind}").read_bytes()
        (tmp_path / f"a.{kind}").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=rf"a\.{kind}: the file is damaged or cut short"):
            READ.encode(path)


def _claims(width: int, height: int) -> bytes:
    """The beginning of a PNG of this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


@pytest.mark.parametrize(
    ("side", "why"),
    [(9_000, r"it has 9,000 × 9,000 pixels; at most 64,000,000"), (60_000, "it has far more than 64,000,000")],
)
def test_a_gigantic_picture_is_refused_before_it_is_unpacked(tmp_path: Path, side: int, why: str) -> None:
    data = b"IDAT" + zlib.compress(b"")
    (tmp_path / "a.png").write_bytes(_claims(side, side) + struct.pack(">I", len(data) - 4) + data + b"\0\0\0\0")
    with pytest.raises(ValueError, match=rf"a\.png: {why}"):
        READ.encode(str(tmp_path / "a.png"))


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.png").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("empty.png", b"")
    with pytest.raises(ValueError, match=r"text\.png: not a picture that can be read \(PNG, JPEG, WEBP, "):
        READ.encode(str(tmp_path / "text.png"))
    for folder in (tmp_path, tmp_path / "all.zip"):
        with pytest.raises(ValueError, match=r"empty\.png: the file is empty"):
            READ.encode(str(folder / "empty.png"))
    with pytest.raises(ValueError, match=r"none\.png: No such file"):
        READ.encode(str(tmp_path / "none.png"))
    with pytest.raises(ValueError, match="is a folder"):
        READ.encode(str(tmp_path))
    path = saved(tmp_path, Image.fromarray(np.ones((4, 4), np.float32)), "float.tiff")
    with pytest.raises(ValueError, match=r"float\.tiff: its pixels are floating-point"):
        READ.encode(path)


@pytest.mark.parametrize("name", ["EPS", "PSD", "PDF"])
def test_a_program_under_another_name_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An EPS is a program in PostScript, for which Pillow starts Ghostscript."""
    run: list[object] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *given, **more: run.append(given))
    if name == "PSD":
        (tmp_path / "a.png").write_bytes(b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 4, 4, 8, 3) + bytes(64))
    else:
        halves().save(tmp_path / "a.png", format=name)
    with pytest.raises(ValueError, match=r"a\.png: not a picture that can be read"):
        READ.encode(str(tmp_path / "a.png"))
    assert not run


@pytest.mark.parametrize("name", ["WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "MPO"])
def test_the_usual_formats_are_read_whatever_the_name(tmp_path: Path, name: str) -> None:
    halves().save(tmp_path / "a.png", format=name)
    assert_halves(READ.encode(str(tmp_path / "a.png")))


def test_how_pictures_are_read_is_saved(tmp_path: Path) -> None:
    source_reader.save(READ, tmp_path)
    again = source_reader.load(tmp_path)
    assert isinstance(again, PictureReader)
    assert (again.size, again.shape) == (32, (32, 32, 3))
    for size in (0, "64", 1_000_000):
        (tmp_path / source_reader.READER).write_text(json.dumps({"kind": "picture", "size": size}))
        with pytest.raises(ValueError, match="1 to 1024 pixels a side"):
            source_reader.load(tmp_path)


BOMB = """
import sys
from PIL import Image
from regard.data.picture_reader import PictureReader
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
reader = PictureReader(64)
reader.encode(sys.argv[1])  # what the first picture loads is not the second's memory
before = peak()
reader.encode(sys.argv[2])
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_a_small_file_of_many_pixels_takes_little_more_than_its_pixels(tmp_path: Path) -> None:
    """64 million transparent pixels in 250 kB: 256 MB decoded, and as many in RGB. Whole copies took 981 MB."""
    for name, side in (("small", 8), ("large", 8000)):
        Image.new("RGBA", (side, side)).save(tmp_path / f"{name}.png")
    command = [sys.executable, "-c", BOMB, str(tmp_path / "small.png"), str(tmp_path / "large.png")]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    assert float(done.stdout) < 600
