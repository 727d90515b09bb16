"""Writes the samples that the Picture and Sound views offer: scenes of shapes, and digits from a formant synthesizer.

    python -m tools.viewer_samples

A picture is a scene of the captioner's own test set. A spoken digit is a list of segments: duration in seconds, three
formant frequencies, the strength of the voice and of the noise, and the frequency of the noise. Formants move linearly
from one segment to the next. The voice is a falling train of pulses, each formant a resonator of second order (Klatt
1980).
"""

from __future__ import annotations

import wave
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from regard.viewer.library import SAMPLES

RATE = 8000
PITCH = 150.0
SCENES = {"scene 1": "scene:test:0:1", "scene 2": "scene:test:0:4", "scene 3": "scene:test:0:7"}
PIXELS = 96


class Segment(NamedTuple):
    """One sound of a word."""

    seconds: float
    formants: tuple[float, float, float]
    voice: float = 1.0
    noise: float = 0.0
    hiss: float = 3200.0
    """The frequency around which the noise lies."""


DIGITS = {
    "two": [
        Segment(0.05, (300, 1800, 2500), 0.0, 0.8, 3400),
        Segment(0.05, (320, 1500, 2300), 0.7),
        Segment(0.2, (310, 900, 2250)),
    ],
    "four": [
        Segment(0.11, (400, 1000, 2300), 0.0, 0.15, 3000),
        Segment(0.16, (560, 850, 2400)),
        Segment(0.12, (450, 1100, 1600), 0.7),
    ],
    "six": [
        Segment(0.15, (400, 1800, 2500), 0.0, 0.7, 3700),
        Segment(0.09, (400, 1990, 2550)),
        Segment(0.07, (400, 1990, 2550), 0.0, 0.0),
        Segment(0.03, (400, 1900, 2500), 0.0, 0.5, 2200),
        Segment(0.14, (400, 1800, 2500), 0.0, 0.6, 3700),
    ],
    "seven": [
        Segment(0.14, (400, 1800, 2500), 0.0, 0.7, 3700),
        Segment(0.12, (550, 1800, 2500)),
        Segment(0.06, (300, 1100, 2300), 0.4, 0.05, 3000),
        Segment(0.06, (500, 1500, 2400), 0.7),
        Segment(0.1, (280, 1400, 2300), 0.4),
    ],
    "zero": [
        Segment(0.1, (300, 1700, 2500), 0.3, 0.35, 3700),
        Segment(0.1, (350, 2000, 2600)),
        Segment(0.08, (420, 1200, 1650), 0.8),
        Segment(0.18, (480, 850, 2300)),
    ],
}


def resonance(x: np.ndarray, frequency: np.ndarray, bandwidth: float) -> np.ndarray:
    """A resonator whose frequency changes from sample to sample."""
    r = np.exp(-np.pi * bandwidth / RATE)
    b = 2 * r * np.cos(2 * np.pi * frequency / RATE)
    out = np.zeros(len(x) + 2)
    for i in range(len(x)):
        out[i + 2] = (1 - b[i] + r * r) * x[i] + b[i] * out[i + 1] - r * r * out[i]
    return out[2:]


def speech(segments: list[Segment], pitch: float = PITCH, seed: int = 0) -> np.ndarray:
    """The sound of a word, −1 to 1."""
    generator = np.random.default_rng(seed)
    tracks: dict[str, list[np.ndarray]] = {name: [] for name in ("f1", "f2", "f3", "voice", "noise", "hiss")}
    for at, (now, after) in enumerate(pairwise([*segments, segments[-1]])):
        count = round(now.seconds * RATE)
        glide = np.clip((np.linspace(0, 1, count) - 0.55) / 0.45, 0, 1) if at < len(segments) - 1 else np.zeros(count)
        values = (
            [*now.formants, now.voice, now.noise, now.hiss],
            [*after.formants, after.voice, after.noise, after.hiss],
        )
        for name, a, b in zip(tracks, *values, strict=True):
            tracks[name].append(a + (b - a) * glide)
    track = {name: np.concatenate(parts) for name, parts in tracks.items()}
    count = len(track["f1"])
    period = np.cumsum(np.linspace(1.1, 0.8, count) * pitch / RATE)
    pulses = np.diff(np.floor(period), prepend=0.0)
    glottis = resonance(pulses, np.zeros(count), 120.0) * 12
    voice = glottis * track["voice"]
    for name, bandwidth in (("f1", 70.0), ("f2", 100.0), ("f3", 150.0)):
        voice = resonance(voice, track[name], bandwidth)
    voice = np.diff(voice, prepend=0.0)
    voice /= np.abs(voice).max() or 1
    noise = resonance(generator.standard_normal(count) * track["noise"], np.minimum(track["hiss"], 3800), 500.0) * 0.5
    ends = np.minimum(1, np.minimum(np.arange(count), np.arange(count)[::-1]) / (0.015 * RATE))
    sound = (voice + noise) * ends
    return sound / np.abs(sound).max() * 0.7


def main() -> None:
    from PIL import Image

    from regard.data.corpora import scenes
    from regard.decoding import model_folders
    from regard.decoding.classification import classify

    SAMPLES.mkdir(exist_ok=True)
    for name, scene in SCENES.items():
        Image.fromarray(scenes.picture(scene, PIXELS)).save(SAMPLES / f"{name}.png", optimize=True)
    loaded = model_folders.load("digits-cnn")
    for name, segments in DIGITS.items():
        path = SAMPLES / f"{name}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((speech(segments) * 32767).astype("<i2").tobytes())
        (result,) = classify(loaded.model, loaded.tokenizers, [str(path)])
        print(f"{path.name}: {path.stat().st_size:,} bytes, heard as {result.label}")


if __name__ == "__main__":
    main()
