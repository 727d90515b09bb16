"""Translate: what is typed, translated and lit against the library's translation and its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.decoding import model_folders, translate
from tests.support.browser_page import drawn, link, look, open_view, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page, Route

    from regard.decoding import Translation
    from regard.viewer.server import Server

TEXT = "My sister has a small black dog."
APART, WORD = "He did not want to go to school today.", "pas"
"""A sentence of whose translations one word stands at different places."""
MODELS = ["tatoeba-bahdanau-en-fr", "tatoeba-transformer-en-fr"]


def expected(name: str, text: str, beams: int) -> Translation:
    loaded = model_folders.load(name)
    how: Any = {**loaded.search, "beams": beams, "weights": True}
    return next(iter(translate(loaded.model, loaded.tokenizers, [text], **how)))  # type: ignore[arg-type]


def test_two_models_side_by_side(page: Page, server: Server) -> None:
    cards = look(
        page, server, "drawn.length === 2", view="translate", translate={"text": TEXT, "beams": 3, "pieces": True}
    )
    assert [card["model"] for card in cards] == MODELS
    for card, name in zip(cards, MODELS, strict=True):
        own = expected(name, TEXT, 3)
        assert card["translation"] == own.text
        assert own.weights is not None
        torch.testing.assert_close(torch.tensor(card["weights"]), own.weights.mean(0), atol=1e-5, rtol=1e-4)
        assert len(card["rows"]) == len(own.pieces)
    page.get_by_role("checkbox", name="Transformer").uncheck()
    assert [card["model"] for card in drawn(page, "drawn.length === 1")] == MODELS[:1]


def test_a_result_outlives_a_visit_to_another_tab(page: Page, server: Server) -> None:
    posts: list[Route] = []
    page.route("**/api/translate", lambda route: posts.append(route))
    page.goto(link(server, view="translate", translate={"text": TEXT, "models": MODELS[:1]}))
    page.locator(".translation.coming", has_text="Translating").wait_for()
    open_view(page, "Look-up")
    page.locator("[data-view=lookup]").wait_for()
    open_view(page, "Translate")
    page.locator(".translation.coming", has_text="Translating").wait_for()
    posts[0].continue_()
    drawn(page, "drawn.length === 1")
    assert len(posts) == 1
    assert not page.locator(".translation.coming").count()


def test_words_light_the_words_they_came_from(page: Page, server: Server) -> None:
    asked = {"text": TEXT, "models": MODELS[1:]}
    (card,) = look(page, server, "drawn.length === 1", view="translate", translate=asked)
    weights = torch.tensor(card["weights"])
    assert weights.sum(1).tolist() == pytest.approx([1] * len(card["rows"]), abs=1e-4)
    row = card["rows"].index("petit")
    assert card["columns"][int(weights[row].argmax())] == "small"
    target = page.locator(".sentence.target .word")
    target.nth(row).hover()
    (lit,) = drawn(page, "drawn[0].lit")
    assert lit["lit"] == {"row": row}
    assert lit["shares"]["source"] == pytest.approx(weights[row].tolist())
    column = card["columns"].index("small")
    page.locator(".sentence:not(.target) .word").nth(column).click()
    page.mouse.move(2, 2)
    (lit,) = drawn(page, "drawn[0].lit?.column !== undefined")
    assert lit["shares"]["target"] == pytest.approx(weights[:, column].tolist())
    page.locator(".sentence:not(.target) .word").nth(column + 1).click()  # two words share their weight
    page.mouse.move(2, 2)
    (lit,) = drawn(page, "drawn[0].lit?.columns")
    assert lit["lit"] == {"columns": [column, column + 1]}  # both are outlined
    assert lit["shares"]["target"] == pytest.approx(weights[:, column : column + 2].sum(1).tolist(), abs=1e-6)
    assert page.evaluate("regard.state.get().translate.pins") == {"side": "source", "list": [column, column + 1]}


def test_a_word_is_lit_and_pinned_where_each_model_wrote_it(page: Page, server: Server) -> None:
    cards = look(page, server, "drawn.length === 2", view="translate", translate={"text": APART, "models": MODELS})
    here, there = (card["rows"].index(WORD) for card in cards)
    assert here != there  # or its place would do
    page.locator(".translation").nth(0).locator(".sentence.target .word").nth(here).hover()
    assert [card["lit"] for card in drawn(page, "drawn[0].lit && drawn[1].lit")] == [{"row": here}, {"row": there}]
    page.locator(".translation").nth(0).locator(".sentence.target .word").nth(here).click()
    page.mouse.move(2, 2)
    lit = [card["lit"] for card in drawn(page, "drawn[0].lit?.row !== undefined")]
    assert lit == [{"row": here}, {"row": there}]


def test_no_model_and_a_wrong_number_of_beams_are_said(page: Page, server: Server) -> None:
    look(page, server, "drawn.length === 1", view="translate", translate={"text": TEXT, "models": MODELS[1:]})
    status = page.locator(".translate [role=status]").first
    page.get_by_role("checkbox", name="Transformer").uncheck()
    status.get_by_text("Tick a model to translate with.").wait_for()
    assert drawn(page, "drawn.length === 0") == []
    for wanted, used in (("99", 16), ("0", 1)):
        page.get_by_label("Beams").fill(wanted)
        page.get_by_label("Beams").press("Tab")
        status.get_by_text(f"The search keeps 1 to 16 beams; {used} is used.").wait_for()
        assert page.get_by_label("Beams").input_value() == str(used)


def test_cells_are_read_by_pointer_and_keys(page: Page, server: Server) -> None:
    look(page, server, "drawn.length === 1", view="translate", translate={"text": TEXT, "models": MODELS[:1]})
    canvas = page.locator(".alignment canvas")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert drawn(page)[0]["lit"] == {"row": 1, "column": 1}


def test_steps_of_the_search(page: Page, server: Server) -> None:
    asked = {"text": TEXT, "models": MODELS[1:], "beams": 4}
    look(page, server, "drawn.length === 1", view="translate", translate=asked)
    own = expected(MODELS[1], TEXT, 4)
    page.get_by_label("Step").fill("3")
    settle(page)
    before = own.tokenizers.target.decode(own.tokens[:2])
    assert page.inner_text(".prefix") == before
    assert page.inner_text(".next tr.chosen td:first-child") == own.pieces[2].replace("▁", "").strip()
    shares = [float(text) for text in page.locator(".next td.number").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1.001
    assert 1 <= page.locator(".beam li").count() <= 4


def test_typing_translates(page: Page, server: Server) -> None:
    look(
        page, server, "drawn.length === 1", view="translate", translate={"text": TEXT, "models": MODELS[1:], "beams": 2}
    )
    page.fill("textarea", "I am tired.")
    cards = drawn(page, f"drawn[0]?.columns[0] !== {TEXT.split()[0]!r}")
    assert cards[0]["translation"] == expected(MODELS[1], "I am tired.", 2).text
    page.fill("textarea", "  ")
    assert drawn(page, "drawn.length === 0") == []


def test_export(page: Page, server: Server) -> None:
    (card,) = look(page, server, "drawn.length === 1", view="translate", translate={"text": TEXT, "models": MODELS[:1]})
    table = page.evaluate("regard.table()")
    assert table[1][1:] == card["columns"]
    assert [row[0] for row in table[2:]] == card["rows"]
    svg = page.evaluate("regard.picture()")
    assert card["translation"] in svg
    assert svg.count("<rect") >= len(card["rows"]) * len(card["columns"])


@pytest.fixture(scope="module")
def pointer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A translator that always copies: it has learned nothing else."""
    from regard.data import Tokenizer, TokenizerPair
    from regard.models import EncoderDecoder, EncoderDecoderConfig, RecurrentDecoderConfig, RecurrentEncoderConfig
    from regard.viewer.library import Library, model_at
    from regard.viewer.server import serving

    folder = tmp_path_factory.mktemp("models") / "pointer"
    tokenizer = Tokenizer.train("word", 20, ["the cat sat on the mat"], slots=5)
    torch.manual_seed(0)
    parts = RecurrentEncoderConfig(embedding=8, width=4), RecurrentDecoderConfig(embedding=8, width=8, copy=True)
    model = EncoderDecoder(EncoderDecoderConfig(len(tokenizer), len(tokenizer), *parts, slots=5)).eval()
    with torch.no_grad():
        model.decoder.gate.weight.zero_()
        model.decoder.gate.bias.fill_(-3)
    model.save_pretrained(folder)
    TokenizerPair(tokenizer, tokenizer).save(folder)
    with serving(Library([], [model_at(str(folder))])) as server:
        yield server


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_a_model_that_copies_says_which_words(page: Page, pointer: Server, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    (card,) = look(page, pointer, "drawn.length === 1", view="translate", translate={"text": "zork 4711", "beams": 1})
    copied = 1 - torch.sigmoid(torch.tensor(-3.0)).item()
    said = page.locator(".copying").inner_text()
    assert set(card["rows"]) <= set(card["columns"])
    for label in card["rows"]:
        assert f"“{label}” copied with probability {copied:.2f}" in said
    assert page.locator(".word.copied").count() == len(card["rows"])
    assert page.locator(".steps").get_by_text("(p_gen)").inner_text() == (
        f"From the vocabulary with {1 - copied:.2f} (p_gen), copied from the source with {copied:.2f}."
    )
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
