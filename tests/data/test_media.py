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

from regard.data import media, tokenizer_pair
from regard.data.corpora import photos_and_spoken_digits as published
from regard.data.corpora import tones
from regard.data.media import PictureReader, SoundReader, resample, unheard
from regard.decoding.model_folders import SHIPPED
from tests.support.paths import SHARED

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
    tokenizer_pair.save_reader(READ, tmp_path)
    again = tokenizer_pair.load_reader(tmp_path)
    assert isinstance(again, PictureReader)
    assert (again.size, again.shape) == (32, (32, 32, 3))
    for size in (0, "64", 1_000_000):
        (tmp_path / tokenizer_pair.READER).write_text(json.dumps({"kind": "picture", "size": size}))
        with pytest.raises(ValueError, match="1 to 1024 pixels a side"):
            tokenizer_pair.load_reader(tmp_path)


BOMB = """
import sys
from PIL import Image
from regard.data.media import PictureReader
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


def test_the_captioner_that_ships_still_has_statistics_of_an_earlier_version() -> None:
    assert tokenizer_pair.load_reader(SHIPPED / "scenes-soft").to_dict() == {"size": 64}


soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed (regard[sound])")
DIGITS = SHARED / "data" / "digits"


def _sine(rate: int, pitch: float, seconds: float = 0.5) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate)


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_samples_come_back_as_they_were(tmp_path: Path, kind: str) -> None:
    samples = np.random.default_rng(0).integers(-32768, 32767, 500).astype(np.int16)
    soundfile.write(tmp_path / f"a.{kind}", samples, 8000, subtype="PCM_16")
    read = SoundReader().encode(str(tmp_path / f"a.{kind}"))
    assert read.dtype == np.int16
    np.testing.assert_array_equal(read, samples)


def test_a_stretch_of_a_file(tmp_path: Path) -> None:
    samples = np.arange(1000, dtype=np.int16)
    soundfile.write(tmp_path / "a.flac", samples, 8000)
    np.testing.assert_array_equal(SoundReader().encode(f"{tmp_path / 'a.flac'}#100:50"), samples[100:150])
    with pytest.raises(ValueError, match=r"a.flac#990:50: the stretch ends past the end: the sound has 1,000 samples"):
        SoundReader().encode(f"{tmp_path / 'a.flac'}#990:50")


def test_stereo_is_averaged(tmp_path: Path) -> None:
    left, right = np.full(300, 0.5), np.full(300, -0.25)
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], 1), 8000, subtype="FLOAT")
    np.testing.assert_array_equal(SoundReader().encode(str(tmp_path / "a.wav")), 4096)


@pytest.mark.parametrize("rate", [4000, 11025, 16000, 44100, 48000])
def test_other_rates_are_resampled(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "a.wav", _sine(rate, 440), rate, subtype="FLOAT")
    read = SoundReader().encode(str(tmp_path / "a.wav")) / 32768
    assert abs(len(read) - 4000) <= 1
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(read)) / 8000)
    np.testing.assert_allclose(read[100:-100], wanted[100:-100], atol=2e-4)  # at the ends the filter sees silence


def test_what_8_khz_cannot_hold_does_not_come_back_as_something_else() -> None:
    assert np.abs(resample(_sine(44100, 5000), 44100, 8000))[100:-100].max() < 1e-3


@pytest.mark.parametrize("wrong", [0, 99, 8000.0, "8000", True, 768_001])
def test_a_rate_that_is_none(wrong: object) -> None:
    with pytest.raises(ValueError, match="a rate is a number of samples per second"):
        SoundReader(wrong)


def test_bad_sounds_are_reported_by_name(tmp_path: Path) -> None:
    sounds = SoundReader()
    with pytest.raises(ValueError, match=r"there is no file .*nowhere.wav"):
        sounds.encode(str(tmp_path / "nowhere.wav"))
    (tmp_path / "text.wav").write_text("these are words")
    with pytest.raises(ValueError, match=r"text.wav is no sound that can be read"):
        sounds.encode(str(tmp_path / "text.wav"))
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 8000)
    with pytest.raises(ValueError, match=r"empty.wav is empty"):
        sounds.encode(str(tmp_path / "empty.wav"))
    holed = np.zeros((100, 2))
    holed[17, 1] = np.nan
    soundfile.write(tmp_path / "nan.wav", holed, 8000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"nan.wav: sample 17 is not finite"):
        sounds.encode(str(tmp_path / "nan.wav"))
    holed[17], holed[5] = 0, (np.inf, -np.inf)
    soundfile.write(tmp_path / "inf.wav", holed, 8000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"inf.wav: sample 5 is not finite"):
        sounds.encode(str(tmp_path / "inf.wav"))
    (tmp_path / "nothing.wav").write_bytes(b"")
    with pytest.raises(ValueError, match=r"nothing.wav is empty: it has no bytes"):
        sounds.encode(str(tmp_path / "nothing.wav"))


def test_a_rate_that_no_recorder_has_is_refused_before_it_is_resampled(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    soundfile.write(file, np.zeros(100), 8000)
    written = bytearray(file.read_bytes())
    for rate in (768_000, 768_001):
        written[24:28] = struct.pack("<I", rate)
        file.write_bytes(written)
        if rate == 768_000:
            assert len(SoundReader().encode(str(file))) == 2
        else:
            with pytest.raises(ValueError, match=r"a\.wav says it has 768,001 samples per second; at most 768,000 are"):
                SoundReader().encode(str(file))


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_a_sound_cut_short_is_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"a.{kind}"
    soundfile.write(file, np.random.default_rng(0).normal(0, 0.1, 8000), 8000)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"a\.{kind}.* is damaged or cut short"):
        SoundReader().encode(str(file))
    if kind == "wav":
        with pytest.raises(ValueError, match=r"its header promises 16,000 bytes of sound, and 7,978 are there"):
            SoundReader().encode(f"{file}#10:20")


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_what_a_stream_writes_for_its_length_is_no_promise(tmp_path: Path, size: int) -> None:
    file, samples = tmp_path / "a.wav", np.arange(1000, dtype=np.int16)
    soundfile.write(file, samples, 8000)
    whole = bytearray(file.read_bytes())
    whole[4:8] = whole[40:44] = struct.pack("<I", size)
    file.write_bytes(whole)
    if size:
        np.testing.assert_array_equal(SoundReader().encode(str(file)), samples)
    else:  # libsndfile takes the 0 at its word
        with pytest.raises(ValueError, match=r"a\.wav is empty"):
            SoundReader().encode(str(file))


def test_chunks_after_the_samples_and_odd_ones_before_are_no_harm(tmp_path: Path) -> None:
    file, samples = tmp_path / "a.wav", np.arange(1001, dtype=np.int16)
    soundfile.write(file, samples, 8000)
    whole = file.read_bytes()
    body = (
        whole[12:36] + b"note" + struct.pack("<I", 3) + b"abc\0" + whole[36:] + b"LIST" + struct.pack("<I", 4) + b"INFO"
    )
    file.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)
    np.testing.assert_array_equal(SoundReader().encode(str(file)), samples)


def test_reasons_for_silence(tmp_path: Path) -> None:
    wave = _sine(44100, 440)
    said = {
        "silent": (0 * wave, "nothing is heard in {}: it is silent"),
        "constant": (0 * wave + 0.3, "nothing is heard in {}: it is constant"),
        "opposite": (np.stack([wave, -wave], 1), "nothing is heard in {}: its channels cancel each other"),
        "brief": (wave[:1102], "{} lasts 25.0 milliseconds, too short to judge"),
        "loud": (np.stack([wave, wave], 1), None),
        "one side": (np.stack([wave, 0 * wave], 1), None),
    }
    for name, (samples, why) in said.items():
        file = str(tmp_path / f"{name}.wav")
        soundfile.write(file, samples, 44100)
        silence = unheard(file, SoundReader().encode(file), 8000)
        assert silence is None if why is None else silence.startswith(why.format(file)), name


def test_an_hour_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The header alone says an hour, and a stretch of it is fine."""
    rate, samples = 8000, 8000 * 3600
    file = tmp_path / "hour.wav"
    shape = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    header = (
        struct.pack("<4sI4s", b"RIFF", 36 + 2 * samples, b"WAVE") + shape + struct.pack("<4sI", b"data", 2 * samples)
    )
    with file.open("wb") as out:
        out.write(header)
        out.truncate(len(header) + 2 * samples)  # zeros that take no room on the disk
    with pytest.raises(ValueError, match=r"lasts 3,600 seconds; at most 60 are read: cut it, or name a stretch"):
        SoundReader().encode(str(file))
    assert len(SoundReader().encode(f"{file}#8000:4000")) == 4000


def test_tones_are_what_their_names_say() -> None:
    pairs = list(tones.pairs(30))
    assert pairs == list(tones.pairs(30))
    assert {pair.target for pair in pairs} == set(tones.SHAPES)
    assert not {pair.source for pair in pairs} & {pair.source for pair in tones.pairs(30, split="test")}
    for pair in pairs[:10]:
        x = SoundReader().encode(pair.source).astype(float)
        begin, end = (round(time * tones.RATE) for time in tones.place(pair.source))
        middle = (begin + end) // 2
        first, second = (_pitch(x[a:b]) for a, b in ((begin + 200, middle), (middle, end - 200)))
        heard = "steady" if abs(second / first - 1) < 0.1 else "rising" if second > first else "falling"
        assert heard == pair.target
    with pytest.raises(ValueError, match="names no tone; names look like tone:rising:17"):
        SoundReader().encode("tone:warbling:3")


def _pitch(x: np.ndarray) -> float:
    """The strongest frequency, in Hz."""
    return float(np.abs(np.fft.rfft(x * np.hanning(len(x)), 8192)).argmax() * tones.RATE / 8192)


@pytest.mark.skipif(not DIGITS.exists(), reason="../shared/data/digits is missing")
def test_digits_are_split_officially_and_by_speaker() -> None:
    official = {split: list(published.spoken_digits(DIGITS, split)) for split in ("train", "valid", "test")}
    assert {split: len(pairs) for split, pairs in official.items()} == {"train": 2400, "valid": 300, "test": 300}
    assert len({pair.source for pairs in official.values() for pair in pairs}) == 3000
    apart = {split: list(published.spoken_digits(DIGITS, split, "theo")) for split in ("train", "valid", "test")}
    assert {split: len(pairs) for split, pairs in apart.items()} == {"train": 2250, "valid": 250, "test": 500}
    assert SoundReader().encode(official["test"][0].source).std() > 100
    with pytest.raises(ValueError, match=r"data.left_out is 'nobody'; the speakers are george, jackson"):
        next(published.spoken_digits(DIGITS, "test", "nobody"))


def test_many_channels_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MOST_SAMPLES", 1000)
    file = tmp_path / "many.wav"
    soundfile.write(file, np.zeros((200, 6), np.float32), 8000)
    with pytest.raises(ValueError, match=r"holds 1,200 numbers \(6 channels, 8,000 Hz\); at most 1,000 are read"):
        SoundReader().encode(str(file))
