"""The Read view: words shaded by the weights that `classify` gives, TF-IDF's beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.data import LabelSet, Tokenizer, TokenizerPair
from regard.data.corpora import opinions
from regard.decoding import model_folders
from regard.decoding.classification import classify
from regard.models import Classifier, ClassifierConfig, HeadConfig, RecurrentEncoderConfig
from regard.seeing.align import sum_by_word
from regard.viewer.trace_view import TokenLabels
from tests.support.browser_page import drawn, look

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from regard.viewer.library import Library
    from regard.viewer.server import Server

TEXT = "The soup was not bad, and the waiter was friendly."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, library: Library) -> Path:
    """Two classifiers that have learned nothing: one that looks, one that only takes the last state."""
    from regard.viewer.library import ModelEntry

    made = tmp_path_factory.mktemp("classifiers")
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("bpe", 300, [pair.source for pair in opinions.pairs(200)], lowercase=True)
    words = TokenizerPair(tokenizer, LabelSet(opinions.LABELS))
    reads = RecurrentEncoderConfig(embedding=8, width=8)
    for how in ("attention", "last"):
        Classifier(ClassifierConfig(len(words.source), 3, reads, HeadConfig(how, hidden=8))).save_pretrained(made / how)
        words.save(made / how)
        library.models[how] = ModelEntry(how, "classify", f"By {how}", str(made / how), ours=True)
    return made


def test_words_are_shaded_by_their_weights(page: Page, server: Server, folder: Path) -> None:
    look(page, server, view="read")
    page.get_by_role("textbox", name="Text").fill(TEXT)
    page.keyboard.press("Enter")
    drawing = drawn(page, "drawn.results.length >= 2")  # there may be one that ships
    by_title = {one["title"]: at for at, one in enumerate(drawing["results"])}
    loaded = model_folders.load(str(folder / "attention"))
    (expected,) = classify(loaded.model, loaded.tokenizers, [TEXT], weights=True)
    at = by_title["By attention"]
    first, second = drawing["results"][at], drawing["results"][by_title["By last"]]
    assert first["label"] == expected.label
    assert first["probabilities"] == pytest.approx(expected.probabilities, rel=1e-3)
    pieces = loaded.tokenizers.source.pieces([int(x) for x in expected.numbers])
    assert expected.weights is not None
    weights = sum_by_word(expected.weights, TokenLabels.of(pieces).words)
    assert first["words"][:4] == ["the", "soup", "was", "not"]
    assert first["words"][-1] == "</s>"
    assert first["weights"] == pytest.approx(weights.tolist(), rel=1e-3, abs=1e-6)
    assert len(first["static"]) == len(first["words"]) == len(weights)
    assert second["weights"] is None
    # The darkest word is that of the largest weight.
    shaded = page.get_by_role("region", name="By attention").locator("[data-kind=weights] .token")
    assert shaded.nth(int(weights.argmax())).evaluate("(node) => node.style.background") == "rgb(10, 31, 68)"
    assert drawing["shades"][at][0][int(weights.argmax())] == 1
    assert "waiter</text>" in page.evaluate("regard.picture()")
    assert ["By attention", expected.label, 0, "the"] in [row[:4] for row in page.evaluate("regard.table()")]


def test_a_link_reads_again(page: Page, server: Server, folder: Path) -> None:
    drawing = look(page, server, "drawn.results.length === 1", view="read", text=TEXT, models=["last"])
    assert drawing["results"][0]["title"] == "By last"
    assert page.get_by_label("By attention").is_checked() is False
    page.get_by_label("By attention").check()
    drawn(page, "drawn.results.length === 2")
