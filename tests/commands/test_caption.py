"""`regard data scenes` and `regard caption`, as a newcomer meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from regard.commands import app
from regard.commands.run_models import CAPTIONER
from regard.data import Tokenizer, TokenizerPair
from regard.data.corpora import scenes
from regard.data.media import FORMATS, PictureReader
from regard.decoding.model_folders import shipped
from regard.models import EncoderDecoder, EncoderDecoderConfig, GridEncoderConfig, ShowAttendTellDecoderConfig
from regard.seeing.figures import MAX_WORDS

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {"hidden": 8, "embedding": 8, "width": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captioners that have learned nothing, with all that the commands need."""
    made = tmp_path_factory.mktemp("models")
    sides = TokenizerPair(PictureReader(64), Tokenizer.train("word", 100, (pair.target for pair in scenes.pairs(200))))
    torch.manual_seed(0)
    for attention in ("none", "soft"):
        decoder = ShowAttendTellDecoderConfig(attention=attention, **SMALL)  # type: ignore[arg-type]
        EncoderDecoder(EncoderDecoderConfig(0, len(sides.target), GridEncoderConfig(width=8), decoder)).save_pretrained(
            made / attention
        )
        sides.save(made / attention)
    return made


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_scenes_are_listed_and_written(tmp_path: Path) -> None:
    _, listed, _ = run("data", "scenes", 3, "--test")
    assert [line.split("\t") for line in listed.splitlines()] == [
        [pair.source, pair.target] for pair in scenes.pairs(3, split="test")
    ]
    _, written, _ = run("data", "scenes", 3, "--test", "--save", tmp_path / "new" / "pictures")
    files = [line.split("\t")[0] for line in written.splitlines()]
    assert sorted(str(path) for path in (tmp_path / "new" / "pictures").iterdir()) == files
    with Image.open(files[1]) as image:
        assert (np.asarray(image) == scenes.picture("scene:test:0:1", 256)).all()


def test_a_file_a_scene_and_several(folder: Path, tmp_path: Path) -> None:
    run("data", "scenes", 2, "--save", tmp_path)
    model = ("--model", folder / "soft")
    _, from_file, _ = run("caption", *model, tmp_path / "scene-1.png")
    _, by_name, _ = run("caption", *model, "scene:train:0:0")
    assert from_file == by_name
    assert by_name.strip()
    assert len(by_name.splitlines()) == 1
    (tmp_path / "broken.png").write_text("no picture")
    code, several, wrong = run("caption", *model, "scene:train:0:0", tmp_path / "broken.png", "scene:train:0:1")
    assert code == 1
    lines = [line.split("\t") for line in several.splitlines()]
    assert [line[0] for line in lines] == ["scene:train:0:0", str(tmp_path / "broken.png"), "scene:train:0:1"]
    assert lines[0][1] == by_name.strip()
    assert lines[1][1] == ""
    assert wrong.strip() == f"regard: {tmp_path / 'broken.png'}: not a picture that can be read ({', '.join(FORMATS)})"


def test_where_it_looked_is_drawn(folder: Path, tmp_path: Path) -> None:
    plot = tmp_path / "looked.png"
    _, text, output = run("caption", "--model", folder / "soft", "scene:train:0:0", "--save-plot", plot)
    words = len(text.split())
    assert words > MAX_WORDS  # untrained, it does not know when to end
    assert output.strip() == f"wrote {plot}, the first {MAX_WORDS} of {words} words"
    with Image.open(plot) as image:
        width, height = image.size
    panels = MAX_WORDS + 1
    assert width / height == pytest.approx(1.6 * min(panels, 5) / (1.8 * -(-panels // 5)), rel=0.02)
    with pytest.raises(ValueError, match="draws one picture, and 2 are given"):
        run("caption", "--model", folder / "soft", "scene:train:0:0", "scene:train:0:1", "--save-plot", plot)
    with pytest.raises(ValueError, match="no attention, so there is nothing to show"):
        run("caption", "--model", folder / "none", "scene:train:0:0", "--save-plot", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_what_to_know_of_a_picture_is_reported(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (40, 20), "white").save(tmp_path / "plain.png")
    plain = tmp_path / "plain.png"
    code, output, errors = run("caption", "--model", folder / "soft", plain)
    assert code == 0
    assert output.strip()
    assert f"regard: nothing is seen in {plain}: it is all one colour" in errors
    (tmp_path / "empty.png").write_bytes(b"")
    code, _, errors = run("caption", "--model", folder / "soft", tmp_path / "empty.png", plain)
    assert code == 1
    assert errors.count("nothing is seen") == 1
    assert f"{tmp_path / 'empty.png'}: the file is empty" in errors


def test_what_cannot_be_captioned_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.png: No such file"):
        run("caption", "--model", folder / "soft", tmp_path / "none.png")
    with pytest.raises(ValueError, match="is a model for `regard translate`"):
        run("caption", "--model", "tatoeba-bahdanau-en-fr", tmp_path / "none.png")
    with pytest.raises(ValueError, match="is no scene; scenes are called"):
        run("caption", "--model", folder / "soft", "scene:1")


@pytest.mark.skipif(CAPTIONER not in shipped(), reason=f"{CAPTIONER} does not ship yet")
def test_the_captioner_that_ships_knows_scenes_it_never_saw() -> None:
    """On a fresh install: most captions right to the word."""
    pairs = list(scenes.pairs(40, seed=11, split="test"))
    _, output, _ = run("caption", *(pair.source for pair in pairs))
    texts = [line.split("\t")[1] for line in output.splitlines()]
    assert sum(text == pair.target for text, pair in zip(texts, pairs, strict=True)) >= 30
