"""First runs on one's own data, as a user types them.

Fine-tuning, extending a run and plug-ins: tests/training/test_fine_tuning.py,
tests/training/test_run_folder.py, tests/test_plugins.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("pydantic")

from regard.commands import app

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ["training.updates=3", "training.accelerator=cpu", "training.average=1"]


def typed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_classifier_from_a_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header, quoted commas, two labels; the base that `regard recipes` names, and a [data] section."""
    monkeypatch.chdir(tmp_path)
    rows = [f'"{word}, {mood} film",{mood}' for word in ("a", "what a", "such a", "the") for mood in ("good", "bad")]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows * 5]) + "\n", encoding="utf-8")
    (tmp_path / "mine.toml").write_text("""
base = ["text-cnn"]

[data]
kind = "files"
root = "."
train = ["reviews.csv"]
valid = []
hold_out = 5
columns = ["text", "label"]
""")
    typed("train", "mine.toml", *QUICK, "--out", "runs/mine")
    assert "good" in typed("classify", "--model", "runs/mine", "what a good film")
    assert "40 examples" in typed("evaluate", "runs/mine", "reviews.csv"), "columns that the run names"
    (tmp_path / "more.tsv").write_text("what a good film\tgood\n", encoding="utf-8")
    assert "1 example\n" in typed("evaluate", "runs/mine", "more.tsv"), (
        "the first two where the file does not have them"
    )


def test_sounds_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sounds").mkdir()
    lines = ["file,label"]
    for n in range(12):
        label, pitch = ("low", 200) if n % 2 else ("high", 1200)
        wave = 0.3 * torch.sin(2 * math.pi * (pitch + n) * torch.arange(1600) / 8000)
        soundfile.write(tmp_path / "sounds" / f"{n}.wav", wave.numpy(), 8000)
        lines.append(f"{n}.wav,{label}")
    (tmp_path / "sounds" / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "mine.toml").write_text("""
base = ["sound-gru"]

[data]
kind = "files"
root = "sounds"
train = ["labels.csv"]
valid = []
hold_out = 4
columns = ["file", "label"]
""")
    wave = 0.3 * torch.sin(2 * math.pi * 200 * torch.arange(11 * 8000) / 8000)
    soundfile.write(tmp_path / "sounds" / "long.wav", wave.numpy(), 8000)
    with (tmp_path / "sounds" / "labels.csv").open("a") as file:
        file.write("long.wav,low\n" * 4)  # one of them validates
    shown = typed("train", "mine.toml", *QUICK, "--out", "runs/mine")
    assert "collecting the labels" in shown
    assert "vocabulary" not in shown
    assert "longer than 1,000 frames of 10 ms left out" in shown
    output = typed("classify", "--model", "runs/mine", "sounds/3.wav")
    assert "low" in output or "high" in output
