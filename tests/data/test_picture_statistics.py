"""Pictures unlike those a captioner was trained on are noticed; those like them are not."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from regard.commands import app
from regard.data import source_reader
from regard.data.corpora import scenes
from regard.data.picture_reader import PictureReader
from regard.data.picture_statistics import PictureStatistics
from regard.decoding.load_model_and_tokenizers import SHIPPED

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


def test_scenes_of_another_size_are_like_the_training_scenes(tmp_path: Path) -> None:
    """Grain of single pixels is lost where a large scene is made smaller; that is no other kind of picture."""
    reader = PictureReader(64)
    statistics = PictureStatistics.of(reader.encode(f"scene:train:0:{i}") for i in range(120))
    path = tmp_path / "scene.png"
    for side, i in itertools.product((24, 64, 128, 256, 512), range(8)):
        Image.fromarray(scenes.picture(f"scene:test:0:{i}", side)).save(path)
        assert not statistics.unlike(reader.encode(str(path))), (side, i)


def test_the_captioner_that_ships_knows_its_own_scenes(tmp_path: Path) -> None:
    reader = source_reader.load(SHIPPED / "scenes-soft")
    for i in range(6):
        path = tmp_path / f"{i}.png"
        Image.fromarray(scenes.picture(f"scene:test:0:{i}", 256)).save(path)
        assert reader.remarks(str(path)) == []
    Image.fromarray(_odd()["screenshot"]).save(tmp_path / "screenshot.png")
    (remark,) = reader.remarks(str(tmp_path / "screenshot.png"))
    assert "unlike the pictures this model was trained on" in remark


def test_statistics_of_earlier_versions_are_read_as_they_were_made() -> None:
    pictures = [PictureReader(32).encode(f"scene:train:0:{i}") for i in range(20)]
    values = PictureStatistics.of(pictures, tolerance=0).to_dict()
    del values["tolerance"]
    earlier = PictureStatistics.from_dict(values)
    assert earlier == PictureStatistics.of(pictures, tolerance=0)
    assert not any(map(earlier.unlike, pictures))
    with pytest.raises(ValueError, match="damaged"):
        PictureStatistics.from_dict({**values, "tolerance": -1})


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
