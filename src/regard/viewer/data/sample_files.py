"""The pictures and sounds that ship, to try models with: scenes of shapes, and digits from a formant synthesizer."""

from __future__ import annotations

from pathlib import Path

SAMPLES = Path(__file__).parent / "samples"
"""Written by tools/viewer_samples.py."""
PICTURE, SOUND = ".png", ".wav"


def sample_files(suffix: str) -> list[Path]:
    return sorted(SAMPLES.glob(f"*{suffix}"))
