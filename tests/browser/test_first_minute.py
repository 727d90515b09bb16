"""The first minute: what opens, typing a sentence, links that work elsewhere, and traces that are not here."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from regard.viewer.library import Library, installed_models
from regard.viewer.trace_view import STATE, TEXT, first_trace
from tests.support.browser_page import drawn, link, look, open_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Route

    from regard.viewer.server import Server


@pytest.fixture(scope="module")
def fresh() -> Iterator[Server]:
    """What `regard view` serves before any model has run."""
    from regard.viewer.server import serving

    library = Library([first_trace()], [x for x in installed_models() if x.name != "smollm2"])  # it is slow
    library.opening = dict(STATE)
    with serving(library) as server:
        yield server


def test_the_page_opens_on_a_word_and_what_it_looks_at(page: Page, fresh: Server) -> None:
    page.goto(fresh.url)
    drawing = drawn(page, "drawn.links.length")
    assert drawing["focus"] == [{"side": "query", "at": 8}]
    assert len(drawing["active"]) == 12
    assert not {0, 14} & {line["key"] for line in drawing["links"]}  # [CLS] and [SEP] are hidden
    assert "looks at “cat” from every word" in page.locator(".said").inner_text()
    # One row, the picture, one sentence.
    controls = page.locator("header :is(button, a), .row :is(button, input, select)").filter(visible=True)
    assert controls.count() <= 12
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate("document.querySelector('.stage').getBoundingClientRect().top") <= 0.16 * 900
    assert page.locator(".legend .ramp").is_visible()
    assert len(drawn(page)["lines"]) <= 7
    assert page.get_by_label("Type a sentence").input_value() == TEXT
    badge = page.locator(".foot .badge")
    assert badge.inner_text().startswith("Weights checked")
    assert "Why the model used them is another question" in str(badge.get_attribute("title"))


def test_a_sentence_of_ones_own(page: Page, fresh: Server) -> None:
    page.set_default_timeout(60_000)  # a model is loaded first
    page.goto(fresh.url)
    drawn(page, "drawn.links.length")
    assert page.locator(".example").count() == 3
    page.get_by_label("Model").select_option(label="Transformer translates")  # a model that ships reads the sentence
    drawn(page, "drawn.links.length && regard.state.get().trace")
    page.get_by_label("Type a sentence").fill(" ")
    page.keyboard.press("Enter")
    page.get_by_text("Type a sentence first").wait_for()
    page.get_by_label("Type a sentence").fill("Where is the library?")
    page.keyboard.press("Enter")
    page.get_by_label("Trace").locator("option:checked", has_text="Where is the library?").wait_for(state="attached")
    assert len(drawn(page, "drawn.links.length")["focus"]) == 1  # a word is chosen, as at first
    page.locator("h1").click()  # out of the box
    page.keyboard.press("/")  # no key of the view while it is typed
    page.get_by_label("Type a sentence").press_sequentially(" w")
    assert page.evaluate("regard.state.get().level") is None


def test_a_slow_run_is_named_and_can_be_cancelled(page: Page, fresh: Server) -> None:
    page.goto(fresh.url)
    drawn(page, "drawn.links.length")
    held: list[Route] = []
    page.route("**/api/traces", lambda route: held.append(route))  # a model that never ends
    page.get_by_label("Model").select_option(label="Transformer translates")
    line = page.locator(".run-line")
    line.get_by_text("1 s").wait_for()
    assert TEXT in line.inner_text()
    assert page.locator(".stage").get_attribute("aria-busy") == "true"
    line.get_by_role("button", name="Cancel").click()
    line.wait_for(state="hidden")
    assert page.locator(".stage").get_attribute("aria-busy") == "false"
    chosen = page.get_by_label("Model").locator("option:checked")
    assert chosen.inner_text() == "MiniLM reads"  # whose weights are on the page
    page.get_by_label("Type a sentence").fill("")
    page.get_by_label("Model").select_option(label="Transformer translates")
    page.get_by_text("Transformer translates: type a sentence").wait_for()
    assert len(held) == 1


def test_the_second_enter_counts(page: Page, fresh: Server) -> None:
    """While a run is under way another text is run instead; what the first one gives is dropped."""
    page.goto(fresh.url)
    drawn(page, "drawn.links.length")
    held: list[Route] = []
    page.route("**/api/traces", lambda route: route.continue_() if held else held.append(route))
    for text in ("He eats apples.", "He eats pears."):
        page.get_by_label("Type a sentence").fill(text)
        page.keyboard.press("Enter")
        page.locator(".run-line").get_by_text(text).wait_for()
    page.get_by_label("Trace").locator("option:checked", has_text="pears").wait_for(state="attached")
    assert page.get_by_label("Type a sentence").input_value() == "He eats pears."


def test_a_text_that_is_too_long_is_said_to_be(page: Page, fresh: Server) -> None:
    page.goto(fresh.url)
    drawn(page, "drawn.links.length")
    page.get_by_label("Type a sentence").fill("The cat sat on the mat. " * 90)
    page.keyboard.press("Enter")
    page.locator(".said", has_text="The first 512 of 632 tokens; the rest was not read.").wait_for()


def test_a_link_says_which_model_read_what(page: Page, fresh: Server) -> None:
    page.set_default_timeout(60_000)  # a model is loaded first
    context = page.context
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    look(page, fresh, "drawn.links.length", view="heads")
    page.get_by_label("Model").select_option(label="Bahdanau translates")
    drawn(page, "drawn.links.length && regard.state.get().trace")
    page.get_by_role("button", name="Share").click()
    page.evaluate("regard.state.set({ lookup: { query: [1, 2] }, sort: 'entropy' })")  # of other tabs: not in the link
    page.get_by_role("menuitem", name="Copy link for others (with the token)").click()
    page.locator(".notice", has_text="whoever has it can use this server").wait_for()
    entire = page.evaluate("navigator.clipboard.readText()")
    stranger = context.browser.new_context()  # type: ignore[union-attr]
    other = stranger.new_page()
    assert other.goto(entire.split("?")[0]).status == 401  # type: ignore[union-attr]
    assert "needs the token" in other.locator("h1").inner_text()
    other.goto("about:blank")
    other.goto(entire)
    drawn(other, "drawn.links.length")
    stranger.close()
    page.get_by_role("button", name="Share").click()
    page.get_by_role("menuitem", name="Copy link for this browser").click()
    page.get_by_text("it opens only in a browser that has opened this server").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "token=" not in copied
    assert "lookup=" not in copied
    assert "sort=" not in copied
    assert "model=tatoeba-bahdanau-en-fr" in copied
    assert f"sentence={quote(TEXT)[:-1]}" in copied
    assert not set("\"'[](){}<> ") & set(copied)
    # Where the trace is not known, the model reads the text again.
    page.goto("about:blank")
    page.goto(copied.replace(page.evaluate("(link) => /trace=(\\w+)/.exec(link)[1]", copied), "0123456789ab"))
    drawn(page, "drawn.links.length")
    assert page.get_by_label("Trace").locator("option:checked").inner_text().startswith("Bahdanau")


def test_a_link_to_what_is_not_here(browser: Browser, fresh: Server) -> None:
    page = browser.new_page()  # of its own: the browser logs the 404
    page.goto(link(fresh, view="heads", trace="abc", model="bert", sentence="Hello."))
    empty = page.locator(".empty")
    empty.wait_for()
    assert "bert reading “Hello.”" in empty.inner_text()
    assert "/api/" not in page.locator("#regard").inner_text()
    empty.get_by_role("button", name="MiniLM").click()
    drawn(page, "drawn.links.length")
    page.close()


def test_a_view_before_the_first_answer(page: Page, fresh: Server) -> None:
    held = []
    page.route("**/api/about", lambda route: held.append(route))
    page.goto(fresh.url)
    open_view(page, "Map")
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    page.unroute("**/api/about")
    drawn(page, "drawn.pending === 0")
    assert not page.get_by_role("alert").is_visible()


def test_other_tabs_and_a_server_that_stops(browser: Browser, fresh: Server) -> None:
    page = browser.new_page()
    page.clock.install()
    page.goto(fresh.url)
    drawn(page, "drawn.links.length")
    page.evaluate(
        """fetch("/api/traces", { method: "POST", headers: { "Content-Type": "application/json" },
            body: JSON.stringify({ model: "tatoeba-bahdanau-en-fr", text: "Another tab." }) }).then(() => null)"""
    )
    page.clock.fast_forward(5001)
    page.get_by_label("Trace").locator("option", has_text="Another tab.").wait_for(state="attached")
    page.route("**/api/about", lambda route: route.abort())
    page.clock.fast_forward(5001)
    page.get_by_role("alert").get_by_text("was `regard view` stopped?").wait_for()
    page.unroute("**/api/about")
    page.clock.fast_forward(5001)
    page.get_by_role("alert").wait_for(state="hidden")
    page.close()


def test_figures_say_what_they_show(page: Page, fresh: Server) -> None:
    page.goto(fresh.url)
    drawn(page, "drawn.links.length")
    figure = page.evaluate("regard.figure()")
    for words in ("Heads · minilm · layer 5", TEXT, "head 11"):
        assert words in figure, words
    page.evaluate("regard.state.set({ view: 'map' })")
    drawn(page, "drawn.pending === 0")
    figure = page.evaluate("regard.figure()")
    assert "square-root scale" in figure  # as everywhere, of a short text


def test_no_view_begins_empty(page: Page, fresh: Server) -> None:
    """Pictures and sounds that ship are there at once; a view that cannot show a trace offers another with a click."""
    page.set_default_timeout(60_000)  # a model is loaded first
    look(page, fresh, "drawn.grid", view="picture")
    assert page.locator(".strip-word").count() > 3
    assert page.evaluate("regard.state.get().picture.sample") == "scene 1"
    page.get_by_role("button", name="scene 2").click()
    drawn(page, "regard.state.get().picture.sample === 'scene 2'")
    words = page.locator(".strip").inner_text()
    assert "the brighter, the more" in page.evaluate("regard.figure()")
    link = page.evaluate("regard.link()")
    page.goto("about:blank")
    page.goto(link)  # which restores the picture
    drawn(page, "regard.state.get().picture.sample === 'scene 2' && drawn.grid")
    assert page.locator(".strip").inner_text() == words
    heard = look(page, fresh, "drawn.label", view="sound")
    assert heard["label"] == page.evaluate("regard.state.get().sound.sample")
    page.get_by_role("button", name="“six”").click()
    drawn(page, "drawn.label === 'six'")
    look(page, fresh, view="generation")
    page.get_by_label("Type a sentence").fill("Good morrow, my lord")
    page.get_by_role("button", name="Let a model write").click()
    assert len(drawn(page, "drawn.written.length")["written"]) > 10
    assert page.get_by_label("Type a sentence").input_value() == "Good morrow, my lord"  # it is the prompt
