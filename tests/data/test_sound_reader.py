"""Sounds as people have them: stereo, at other rates, cut out of longer ones; and clear errors for what is no sound."""

import struct
from pathlib import Path

import numpy as np
import pytest

from regard.data.corpora import spoken_digits, tones
from regard.data.sound_reader import SoundReader, resample, unheard
from tests.support.paths import SHARED

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


def test_silence_is_a_sound(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(800), 8000)
    np.testing.assert_array_equal(SoundReader().encode(str(tmp_path / "silence.wav")), np.zeros(800))


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
    official = {split: list(spoken_digits.pairs(DIGITS, split)) for split in ("train", "valid", "test")}
    assert {split: len(pairs) for split, pairs in official.items()} == {"train": 2400, "valid": 300, "test": 300}
    assert len({pair.source for pairs in official.values() for pair in pairs}) == 3000
    apart = {split: list(spoken_digits.pairs(DIGITS, split, "theo")) for split in ("train", "valid", "test")}
    assert {split: len(pairs) for split, pairs in apart.items()} == {"train": 2250, "valid": 250, "test": 500}
    assert SoundReader().encode(official["test"][0].source).std() > 100
    with pytest.raises(ValueError, match=r"data.left_out is 'nobody'; the speakers are george, jackson"):
        next(spoken_digits.pairs(DIGITS, "test", "nobody"))


def test_many_channels_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.data import sound_reader as sounds

    monkeypatch.setattr(sounds, "MOST", 1000)
    file = tmp_path / "many.wav"
    soundfile.write(file, np.zeros((200, 6), np.float32), 8000)
    with pytest.raises(ValueError, match=r"holds 1,200 numbers \(6 channels, 8,000 Hz\); at most 1,000 are read"):
        sounds.SoundReader().encode(str(file))
