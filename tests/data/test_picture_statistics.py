"""Pictures unlike those a captioner was trained on are noticed; those like them are not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from regard.commands import app
from regard.data import source_reader
from regard.data.picture_reader import PictureReader
from regard.data.picture_statistics import PictureStatistics

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def statistics() -> PictureStatistics:
    reader = PictureReader(32)
    return PictureStatistics.of(reader.encode(f"scene:train:0:{i}") for i in range(120))


def _odd() -> dict[str, np.ndarray]:
    chance, ramp = np.random.default_rng(0), np.linspace(0, 255, 32).astype(np.uint8)
    plain = np.full((32, 32, 3), 250, np.uint8)
    plain[10:12, 4:28] = 30  # a line of text
    return {
        "noise": chance.integers(0, 255, (32, 32, 3), dtype=np.uint8),
        "gradient": np.stack(
            [np.tile(ramp, (32, 1)), np.tile(ramp[:, None], (1, 32)), np.full((32, 32), 128, np.uint8)], -1
        ),
        "screenshot": plain,
    }


def test_unseen_scenes_are_like_the_training_scenes_and_other_pictures_are_not(statistics: PictureStatistics) -> None:
    reader = PictureReader(32)
    assert not [i for i in range(60) if statistics.unlike(reader.encode(f"scene:test:0:{i}"))]
    assert [name for name, pixels in _odd().items() if statistics.unlike(pixels)] == ["noise", "gradient", "screenshot"]


def test_a_reader_keeps_them_in_its_file(statistics: PictureStatistics, tmp_path: Path) -> None:
    reader = PictureReader(32)
    assert "typical" not in reader.to_dict()
    reader.learn_typical(["scene:train:0:0", "no such file", "scene:train:0:1"])
    assert reader.typical is not None
    reader.typical = statistics
    source_reader.save(reader, tmp_path)
    assert source_reader.load(tmp_path).typical == statistics
    values = json.loads((tmp_path / source_reader.READER).read_text(encoding="utf-8"))
    values["typical"]["mean"] = [1.0]
    (tmp_path / source_reader.READER).write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ValueError, match="statistics of training pictures are damaged"):
        source_reader.load(tmp_path)


def test_the_captioner_that_ships_warns(tmp_path: Path) -> None:
    file = tmp_path / "noise.png"
    Image.fromarray(_odd()["noise"]).resize((200, 150), Image.Resampling.NEAREST).save(file)
    output = CliRunner().invoke(app, ["caption", str(file), "scene:test:0:5"]).output
    assert "unlike the pictures this model was trained on" in output
    assert output.count("unlike") == 1
