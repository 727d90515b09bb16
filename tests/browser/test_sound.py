"""Sound: what was heard and when it was listened to, against the library's own answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.support.browser_page import drawn, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from regard.viewer.server import Server

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed (regard[sound])")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One that names tones and one that spells them, neither of which has learned anything."""
    from regard.data import Tokenizer, TokenizerPair
    from regard.data.corpora import tones
    from regard.data.media import SoundReader
    from regard.data.tokenizer_pair import LabelSet
    from regard.models import (
        Classifier,
        ClassifierConfig,
        ConvolutionEncoderConfig,
        EncoderDecoder,
        EncoderDecoderConfig,
        HeadConfig,
        RecurrentDecoderConfig,
        RecurrentEncoderConfig,
    )

    made = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    encoder = ConvolutionEncoderConfig(reads="sound")
    namer = TokenizerPair(SoundReader(), LabelSet(tones.SHAPES))
    Classifier(ClassifierConfig(0, len(tones.SHAPES), encoder, HeadConfig())).save_pretrained(made / "namer")
    namer.save(made / "namer")
    speller = TokenizerPair(SoundReader(), Tokenizer.train("character", 40, tones.SHAPES))
    below = RecurrentEncoderConfig(reads="sound", width=16)
    decoder = RecurrentDecoderConfig(width=16, embedding=8)
    EncoderDecoder(EncoderDecoderConfig(0, len(speller.target), below, decoder)).save_pretrained(made / "speller")
    speller.save(made / "speller")
    return [made / "namer", made / "speller"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from regard.data.corpora import tones
    from regard.data.media import SoundReader

    path = tmp_path_factory.mktemp("sounds") / "tone.wav"
    soundfile.write(path, SoundReader().encode("tone:rising:11"), tones.RATE, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def own(folders: list[Path]) -> Iterator[Server]:
    from regard.viewer.library import Library, model_at
    from regard.viewer.server import serving

    with serving(Library([], [model_at(str(folder)) for folder in folders])) as server:
        yield server


def test_a_sound_is_named_and_its_time_read(page: Page, own: Server, folders: list[Path], sound: Path) -> None:
    from regard.decoding import model_folders
    from regard.decoding.classification import classify

    page.goto(f"{own.url}#view=sound")
    page.set_input_files("input[type=file]", sound)
    drawing = drawn(page, "drawn.label && !regard.state.get().sound")
    loaded = model_folders.load(folders[0])
    (named,) = classify(loaded.model, loaded.tokenizers, [str(sound)], weights=True)  # type: ignore[arg-type]
    assert drawing["label"] == named.label
    assert page.inner_text(".heard") == named.label
    assert named.weights is not None
    assert drawing["weights"] == pytest.approx(named.weights.tolist(), rel=1e-4, abs=1e-7)
    shares = [float(text) for text in page.locator(".next td.number").all_inner_texts()]
    assert shares == pytest.approx(list(named.probabilities.values()), abs=6e-4)
    box = page.locator(".drawing canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    settle(page)
    seconds, weight = page.locator(".aside [role=status]").inner_text().split(" s: ")
    assert float(seconds) == pytest.approx(0.5, abs=0.01)
    assert float(weight.replace("−", "-")) == pytest.approx(drawing["weights"][len(drawing["weights"]) // 2], rel=0.01)
    table = page.evaluate("regard.table()")
    assert len(table) == len(drawing["weights"]) + 1
    assert page.evaluate("regard.picture()").startswith("<svg")


def test_letters_have_weights_of_their_own(page: Page, own: Server, folders: list[Path], sound: Path) -> None:
    from regard.decoding import model_folders, translate

    page.goto(f"{own.url}#view=sound")
    page.set_input_files("input[type=file]", sound)
    drawn(page, "drawn.label && !regard.state.get().sound")
    loaded = model_folders.load(folders[1])
    (spelled,) = translate(loaded.model, loaded.tokenizers, [str(sound)], **{**loaded.search, "weights": True})  # type: ignore[arg-type]
    assert spelled.weights is not None
    letters = page.locator(".aside .word")
    assert letters.count() == len(spelled.pieces) - 1
    letters.nth(1).click()
    drawing = drawn(page)
    assert drawing["weights"] == pytest.approx(spelled.weights.mean(0)[1].tolist(), rel=1e-4, abs=1e-7)


def test_without_a_model_it_says_so(page: Page) -> None:
    from regard.viewer.library import Library
    from regard.viewer.server import serving

    with serving(Library()) as server:
        page.goto(f"{server.url}#view=sound")
        assert "“listen”" in page.inner_text(".empty")


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_numbers_keep_their_line(page: Page, own: Server, sound: Path, width: int) -> None:
    """Small shares such as 4.1e-7 are long; none breaks, and the bars have the room that is left."""
    page.set_viewport_size({"width": width, "height": 800})
    shares = {"seven": 0.9996, "four": 3.1e-4, "three": 1.23e-6, "eight": 4.56e-11}
    answer = {"label": "seven", "probabilities": shares, "seconds": 1, "waveform": [[-1, 1]] * 9, "weights": [0.5, 0.5]}
    page.route("**/api/listen", lambda route: route.fulfill(json=answer))
    page.goto(f"{own.url}#view=sound")
    page.set_input_files("input[type=file]", sound)
    drawn(page, "drawn.label === 'seven'")
    measured = page.evaluate("""() => [...document.querySelectorAll(".aside .next tr")].map((row) => {
        const range = document.createRange();
        range.selectNodeContents(row.querySelector(".number"));
        const { right } = document.querySelector(".aside").getBoundingClientRect();
        const track = row.querySelector(".track").getBoundingClientRect();
        return [range.getClientRects().length, track.width, right - track.right];
    })""")
    assert len(measured) == len(shares)
    for lines, track, room in measured:
        assert lines == 1
        assert track > 50
        assert room > 0
