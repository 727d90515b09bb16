"""The log-mel energies: held to the sums they are defined by, written out, and to what others ship."""

import math

import numpy as np
import pytest
import torch

from regard.layers.sound import LogMel, triangles
from regard.models.encoders import SoundEmbedding


def _written_out(sound: np.ndarray, mel: LogMel) -> np.ndarray:
    """The docstring's formulas, with a discrete Fourier transform by its definition, in float64."""
    n = np.arange(mel.window)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / mel.window)
    fourier = np.exp(-2j * np.pi * np.outer(np.arange(mel.size // 2 + 1), n) / mel.size)  # [frequencies, window]
    top = 2595 * math.log10(1 + mel.rate / 2 / 700)
    corners = [700 * (10 ** (m * top / (mel.bands + 1) / 2595) - 1) for m in range(mel.bands + 2)]
    rows = []
    for begin in range(0, len(sound) - mel.window + 1, mel.hop):
        power = np.abs(fourier @ (hann * sound[begin : begin + mel.window])) ** 2
        row = []
        for m in range(mel.bands):
            low, middle, high = corners[m : m + 3]
            total = 0.0
            for k, strength in enumerate(power):
                f = k * mel.rate / mel.size
                if low < f <= middle:
                    total += strength * (f - low) / (middle - low)
                elif middle < f < high:
                    total += strength * (high - f) / (high - middle)
            row.append(math.log(max(total, mel.floor)))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize(("rate", "bands"), [(8000, 40), (16000, 64)])
def test_it_is_the_formula(rate: int, bands: int) -> None:
    mel = LogMel(rate, bands)
    chance = np.random.default_rng(0)
    sound = 0.1 * chance.standard_normal(rate // 10) + np.sin(2 * np.pi * 700 * np.arange(rate // 10) / rate)
    ours = mel.double()(torch.from_numpy(sound)[None])[0]
    # The window and the triangles are kept in float32.
    np.testing.assert_allclose(ours.numpy(), _written_out(sound, mel), rtol=0, atol=1e-5)


def test_float32_is_near_the_formula() -> None:
    mel = LogMel()
    sound = np.random.default_rng(1).uniform(-1, 1, 1000)
    ours = mel(torch.from_numpy(sound).float()[None])[0]
    np.testing.assert_allclose(ours.numpy(), _written_out(sound, mel), atol=1e-3)


def test_a_tone_is_loudest_in_its_band() -> None:
    mel = LogMel()
    for pitch in (300.0, 1000.0, 3000.0):
        energies = mel(torch.sin(2 * torch.pi * pitch * torch.arange(4000) / 8000)[None])[0].mean(0)
        middles = 700 * (10 ** (torch.linspace(0, 2595 * math.log10(1 + 4000 / 700), 42)[1:-1] / 2595) - 1)
        assert energies.argmax() == (middles - pitch).abs().argmin()


def test_neighbouring_triangles_sum_to_one() -> None:
    bank = triangles(8000, 256, 40)
    corners = 700 * (10 ** (torch.linspace(0, 2595 * math.log10(1 + 4000 / 700), 42) / 2595) - 1)
    frequencies = torch.arange(129) * 8000 / 256
    inside = (frequencies >= corners[1]) & (frequencies <= corners[-2])
    torch.testing.assert_close(bank[inside].sum(1), torch.ones(int(inside.sum())))


def test_more_bands_than_frequencies_are_refused() -> None:
    with pytest.raises(ValueError, match="200 bands are too many"):
        LogMel(bands=200)


def test_as_torchaudio_has_it() -> None:
    functional = pytest.importorskip("torchaudio.functional", reason="torchaudio is not installed")
    theirs = functional.melscale_fbanks(129, 0.0, 4000.0, 40, 8000, mel_scale="htk")
    torch.testing.assert_close(triangles(8000, 256, 40), theirs, atol=1e-5, rtol=1e-5)


def test_as_librosa_has_it() -> None:
    librosa = pytest.importorskip("librosa", reason="librosa is not installed")
    theirs = librosa.filters.mel(sr=8000, n_fft=256, n_mels=40, htk=True, norm=None)
    torch.testing.assert_close(triangles(8000, 256, 40), torch.from_numpy(theirs.T), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("samples", "frames"), [(1, 1), (200, 1), (279, 1), (280, 2), (8000, 98)])
def test_frames(samples: int, frames: int) -> None:
    mel = LogMel()
    assert mel(torch.zeros(1, samples)).shape == (1, frames, 40)
    assert mel.frames(torch.tensor([samples])).tolist() == [frames]


def test_hearing_does_not_depend_on_loudness_or_padding() -> None:
    torch.manual_seed(0)
    ear = SoundEmbedding(8)
    sound = torch.randint(-3000, 3000, (1, 2000), dtype=torch.int16)
    once, lengths = ear(sound, torch.tensor([2000]))
    torch.testing.assert_close(ear(sound * 4, torch.tensor([2000]))[0], once, atol=1e-3, rtol=1e-3)
    longer = torch.cat([sound, torch.full((1, 777), 99, dtype=torch.int16)], 1)
    padded, same = ear(longer, torch.tensor([2000]))
    assert lengths.tolist() == same.tolist() == [23]
    torch.testing.assert_close(padded[:, :23], once)


def test_silence_is_finite() -> None:
    x, _ = SoundEmbedding(8)(torch.zeros(2, 500, dtype=torch.int16), torch.tensor([500, 1]))
    assert x.isfinite().all()
