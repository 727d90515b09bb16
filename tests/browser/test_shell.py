"""The shell: tabs, links, keys, themes, traces and the proof, as a person uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.browser_page import drawn, link, look, on_model_worker, open_view, settings

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from regard.seeing import Seen
    from regard.viewer.library import Library
    from regard.viewer.server import Server


def test_every_view_by_its_key_and_back(page: Page, server: Server, trace: str) -> None:
    look(page, server, "drawn.links.length", view="heads", trace=trace)
    names = page.evaluate("regard.views")
    assert set(names) >= {"heads", "model", "neuron", "generation", "read", "map", "lookup", "translate"}
    for at, name in enumerate(names):
        letter = {"effects": "f"}.get(name, name[0])  # "e" exports
        page.keyboard.press(str((at + 1) % 10) if at < 10 else letter)
        page.wait_for_function(f"() => document.querySelector('.stage').dataset.view === '{name}'")
        page.locator(f"nav [data-name='{name}'][aria-current=true]").wait_for(state="attached")  # its trace was read
        shown = page.locator(".tabs [data-open] b").inner_text().strip()
        assert page.locator("nav [aria-current=true]").get_attribute("data-name") == name
        assert page.title() == f"{shown} – regard"
    page.go_back()
    page.wait_for_function(f"() => document.querySelector('.stage').dataset.view === '{names[-2]}'")
    open_view(page, "Heads")
    drawn(page, "drawn.links.length")
    assert page.locator("nav .menu button").count() == len(names)  # in four groups
    assert page.locator("nav .holder").count() == 4


def test_themes(page: Page, server: Server, trace: str) -> None:
    page.emulate_media(color_scheme="dark")
    look(page, server, "drawn.links.length", view="heads", trace=trace)
    root = page.locator("#regard")
    assert root.get_attribute("data-theme") == "dark"
    page.keyboard.press("t")
    assert root.get_attribute("data-theme") == "light"
    page.reload()
    drawn(page, "drawn.links.length")
    assert root.get_attribute("data-theme") == "light"
    settings(page)
    page.get_by_role("button", name="Colours: light").click()
    assert root.get_attribute("data-theme") == "dark"


def test_lecture_size_stays_and_keeps_the_sentence(page: Page, server: Server, trace: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    look(page, server, "drawn.links.length", view="heads", trace=trace)
    settings(page)
    page.get_by_role("button", name="Lecture size").click()
    settings(page)
    page.reload()
    drawn(page, "drawn.links.length")
    assert page.locator("#regard.large").count() == 1
    assert page.get_by_label("Type a sentence").is_visible()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Type a sentence"


def test_the_list_of_keys(page: Page, server: Server, trace: str) -> None:
    look(page, server, "drawn.links.length", view="heads", trace=trace)
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    assert "hide special tokens" in dialog.inner_text()
    assert dialog.evaluate("(dialog) => dialog.scrollTop") == 0  # it opens at its beginning
    assert dialog.evaluate("(dialog) => dialog.contains(document.activeElement)")
    page.keyboard.press("s")  # nothing while the list is open
    assert page.evaluate("regard.state.get().mute") is None
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_the_proof(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    look(page, server, "drawn.links.length", view="heads", trace=trace, call="1")
    badge = page.locator(".foot .badge")
    error = minilm[1].fidelity().error
    assert error is not None
    assert badge.get_attribute("data-kept") == "true"
    assert float(badge.inner_text().split("error")[1]) == pytest.approx(error, rel=0.06)
    badge.click()
    rows = page.get_by_role("dialog", name="Proof").locator("tbody tr")
    assert rows.count() == len(minilm)
    assert minilm[1].name in rows.nth(1).inner_text()


def test_another_trace_and_a_new_one(page: Page, server: Server, library: Library, trace: str) -> None:
    look(page, server, "drawn.links.length", view="heads", trace=trace, pins=["q3"])
    other = next(id for id in library.traces if id != trace)
    settings(page)
    page.get_by_label("Trace").select_option(other)
    drawing = drawn(page, "drawn.links.length && drawn.focus.length === 0")
    assert drawing["rows"][-1] < 12
    page.get_by_label("Model").select_option("MiniLM reads")
    page.get_by_label("Second sentence").fill("It rained.")
    page.get_by_label("Type a sentence").fill("Rain fell.")
    page.keyboard.press("Enter")
    chosen = page.get_by_label("Trace").locator("option:checked", has_text="MiniLM · Rain fell.")
    chosen.wait_for(state="attached")
    assert len(drawn(page, "drawn.links.length && drawn.rows.length === 9")["rows"]) == 9


@pytest.mark.parametrize("width", [390, 1024])
def test_the_model_of_a_trace_is_in_view_and_its_text_on_one_line(
    page: Page, server: Server, library: Library, trace: str, width: int
) -> None:
    made = on_model_worker(
        server, lambda: library.read("shakespeare-transformer", "My lord,\nthe night is", generate=4)
    )
    page.set_viewport_size({"width": width, "height": 800})
    look(page, server, "drawn.links.length", view="heads", trace=made.id)
    model = page.get_by_label("Model")
    assert model.locator("option:checked").inner_text() == "Shakespeare (Transformer) continues"
    box = model.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.get_by_label("Type a sentence").input_value() == "My lord, the night is"
    assert page.evaluate("scrollY") == 0
    settings(page)
    # Only a text with special tokens offers to hide them, by their names.
    hide = page.locator("label.tick", has_text="Hide")
    assert not hide.is_visible()
    look(page, server, "drawn.links.length", view="heads", trace=trace)
    assert hide.text_content() == "Hide [CLS], [SEP]"


def test_errors_are_reported(browser: object, server: Server) -> None:
    page = browser.new_page()  # type: ignore[attr-defined]  # of its own: the browser logs refused requests as errors
    try:
        look(page, server, view="heads")
        page.route("**/weights*", lambda route: route.fulfill(status=500, json={"error": "no weights today"}))
        page.evaluate("regard.state.set({ call: '3' })")
        alert = page.get_by_role("alert")
        alert.wait_for()
        assert "no weights today" in alert.inner_text()
        alert.get_by_role("button").click()
        assert not alert.is_visible()
    finally:
        page.close()


def test_narrow(page: Page, server: Server, trace: str) -> None:
    page.set_viewport_size({"width": 900, "height": 700})
    for view in ("heads", "model", "neuron"):
        look(page, server, view=view, trace=trace)
        page.wait_for_timeout(100)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 900, view


def test_an_answer_that_comes_late_is_dropped(page: Page, server: Server, library: Library, trace: str) -> None:
    other = next(id for id in library.traces if id != trace)
    held: list[Route] = []
    page.route(f"**/api/traces/{other}", lambda route: held.append(route))
    page.goto(link(server, view="heads", trace=other))
    page.wait_for_function("() => document.querySelector('.stage')?.dataset.view === 'heads'")
    while not held:
        page.wait_for_timeout(20)
    page.evaluate("(trace) => regard.state.set({ trace })", trace)
    drawn(page, "drawn.links.length")
    words = page.locator(".foot .badge").inner_text()
    with page.expect_response(f"**/api/traces/{other}"):
        held[0].continue_()
    page.wait_for_timeout(100)
    page.evaluate("regard.state.set({ lines: 'all' })")  # the bar is written anew
    assert page.locator(".foot .badge").inner_text() == words


BUSY = """(() => {
    const own = window.fetch;
    const met = new Set();
    window.fetch = (url, options) => {
        const path = String(url).split("?")[0];
        if (!/(tile|weights|neuron)$/.test(path) || met.has(path)) return own(url, options);
        met.add(path);
        const body = JSON.stringify({ error: "513 requests wait already; ask again in a moment" });
        return Promise.resolve(new Response(body, { status: 503 }));
    };
})()"""


VIEWS = [
    ("map", "drawn.pending === 0 && drawn.cell(2, 3).value != null"),
    ("heads", "drawn.links.length"),
    ("neuron", "drawn.rows.length && drawn.q"),
]


@pytest.mark.parametrize(("view", "here"), VIEWS)
def test_a_busy_server_is_asked_again(page: Page, server: Server, trace: str, view: str, here: str) -> None:
    page.add_init_script(BUSY)
    look(page, server, here, view=view, trace=trace)
    assert not page.get_by_role("alert").is_visible()


@pytest.mark.parametrize(("view", "here"), VIEWS)
def test_what_failed_is_asked_for_again_later(page: Page, server: Server, trace: str, view: str, here: str) -> None:
    page.clock.install()
    page.add_init_script(BUSY.replace("503", "500"))
    look(page, server, view=view, trace=trace)
    page.get_by_text("ask again in a moment").first.wait_for()
    assert not page.evaluate(f"() => {{ const drawn = regard.drawn(); return Boolean({here}); }}")
    page.clock.fast_forward(5001)
    page.keyboard.press("t")  # drawn anew
    drawn(page, here)


ODD = ["NaN", "-3", "1e999", "1e12", '"text"', "[]"]
STATE = [
    "lines",
    "shift",
    "at",
    "head",
    "query",
    "entry",
    "heads",
    "pins",
    "mute",
    "level",
    "call",
    "sort",
    "pool",
]
OWN = ['{"x":"NaN","y":-1,"scale":1e999,"other":{"head":-7}}', '{"word":"x","query":-2}', '{"models":"x","beams":"y"}']


@pytest.mark.parametrize("odd", ODD)
def test_odd_links_break_nothing(page: Page, server: Server, trace: str, odd: str) -> None:
    """Of what makes no sense in a link nothing is taken, and what goes beyond the text is brought back to it."""
    state = "&".join(f"{key}={quote(odd)}" for key in STATE)
    for view, here in VIEWS:
        page.goto("about:blank")
        page.goto(f"{server.url}#view={view}&trace={trace}&{state}")
        if view == "heads" and odd == "[]":  # no head is on, as a link may say
            drawn(page, "drawn.active.length === 0")
        else:
            drawn(page, here)
        assert not page.get_by_role("alert").is_visible()
    page.evaluate(f"location.hash = '#{state}'")  # as one who edits the address: there is no view in it
    drawn(page)
    assert page.title().startswith("Heads")


@pytest.mark.parametrize(("view", "own"), [*zip(["map", "picture", "translate"], OWN, strict=True), ("read", "5")])
def test_odd_settings_of_a_view_break_nothing(page: Page, server: Server, trace: str, view: str, own: str) -> None:
    page.goto(f"{server.url}#view={view}&trace={trace}&{view}={quote(own)}&models={quote(own)}&text={quote(own)}")
    page.locator(f".stage[data-view={view}] > :not(.folds)").first.wait_for()
    page.wait_for_load_state("networkidle")
    assert not page.get_by_role("alert").is_visible()


def test_what_is_beyond_the_text_is_brought_back(page: Page, server: Server, trace: str) -> None:
    look(page, server, "drawn.links.length", view="heads", trace=trace, shift=-9000, at=9000)
    page.mouse.wheel(0, 0)
    tall = page.evaluate("document.querySelector('.spacer').offsetHeight")
    rows = drawn(page)["rows"]
    assert tall < drawn(page)["row"] * 60  # twice the text and no more
    assert rows[-1] < 30
    page.keyboard.press("Shift+ArrowDown")
    assert page.evaluate("regard.state.get().shift") > -30


def test_files_are_named_for_what_they_show(page: Page, server: Server, library: Library, trace: str) -> None:
    translator = next(one.id for one in library.traces.values() if one.seen.model == "tatoeba-transformer-en-fr")
    two = {"other": {"trace": trace, "call": "4", "head": 9}}
    for state, name in [
        ({"view": "map", "trace": trace, "call": "3", "head": 7}, "regard-minilm-layer3-head7-map"),
        (
            {"view": "map", "trace": translator, "call": "4", "head": 1, "map": two},
            "regard-tatoeba-transformer-en-fr-decoder.layers.0.cross-head1-minilm-layer4-head9-map",
        ),
        ({"view": "model", "trace": trace}, "regard-minilm-model"),
        ({"view": "heads", "trace": trace, "call": "2"}, "regard-minilm-layer2-heads"),
        ({"view": "lookup"}, "regard-lookup"),
    ]:
        look(page, server, "!('pending' in drawn) || drawn.cell(0, 0).value != null", **state)
        page.get_by_role("button", name="Share").click()
        with page.expect_download() as waiting:
            page.get_by_role("menuitem", name="CSV").click()
        assert waiting.value.suggested_filename == f"{name}.csv"


def test_what_shows_nothing_exports_nothing(page: Page, server: Server, trace: str) -> None:
    page.goto(link(server, view="translate", translate={"text": ""}))
    page.locator(".stage .translate").wait_for()
    page.keyboard.press("e")
    page.get_by_role("menuitem", name="SVG").click()
    assert "nothing to export yet" in page.get_by_role("alert").inner_text()
