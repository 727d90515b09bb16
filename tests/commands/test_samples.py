"""`regard samples`: files that the models that ship get right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from regard.commands import app

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("soundfile", reason="soundfile is not installed (regard[sound])")


def test_the_samples_can_be_written_and_used(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["samples"]).output.split()
    saved = CliRunner().invoke(app, ["samples", "--save", str(tmp_path)]).output.splitlines()
    assert [(tmp_path / name).is_file() for name in listed] == [True] * len(saved)
    sounds = [name for name in listed if name.endswith(".wav")]
    lines = CliRunner().invoke(app, ["classify", *(str(tmp_path / name) for name in sounds)]).output.splitlines()
    labels = [line.split()[0] for line in lines if " 0." in line and "and 5 more" in line]
    assert labels == [name.removesuffix(".wav") for name in sounds]
    assert len(sounds) >= 3
    assert len(listed) - len(sounds) >= 3
