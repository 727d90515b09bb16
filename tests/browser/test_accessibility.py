"""axe-core finds nothing wrong with any view, light or dark, nor with the dialogs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from tests.support.browser_page import link, look, settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from regard.viewer.library import Library
    from regard.viewer.server import Server

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

STATES = {
    "heads": {"call": "2", "pins": ["q3"]},
    "model": {"call": "2", "head": 9, "sort": "entropy"},
    "neuron": {"call": "2", "head": 9},
    "generation": {},
    "read": {},
    "map": {"call": "2", "head": 9},
    "lookup": {},
    "translate": {},
    "picture": {},
    "sound": {},
    "inside": {},
    "effects": {},
}

SETTINGS = True  # unfolded


def problems(page: Page) -> list[str]:
    report = axe.Axe().run(page, options={"resultTypes": ["violations"]})
    return [f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:160]})" for one in report.response["violations"]]


@pytest.mark.parametrize("view", STATES)
def test_nothing_is_wrong(view: str, page: Page, server: Server, library: Library) -> None:
    trace = next(iter(library.traces))
    if view in ("generation", "inside"):  # a translator wrote something
        trace = next(one.id for one in library.traces.values() if one.seen.model.startswith("tatoeba"))
    page.goto(link(server, view=view, trace=trace, **STATES[view]))
    page.locator(f".stage[data-view={view}] > :not(.folds)").first.wait_for()
    page.wait_for_load_state("networkidle")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for width, height in ((1280, 800), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            settle(page)
            assert page.locator("#regard").get_attribute("data-theme") == scheme
            assert problems(page) == [], (scheme, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_offer_of_a_tour(browser: Browser, server: Server, scheme: Literal["light", "dark"]) -> None:
    page = browser.new_context(color_scheme=scheme, reduced_motion="reduce").new_page()
    page.goto(server.url)
    page.get_by_role("button", name="take the tour").wait_for()
    assert problems(page) == []
    page.context.close()


@pytest.mark.parametrize("opened", ["Keyboard shortcuts", "Proof"])
def test_dialogs(opened: str, page: Page, server: Server, library: Library) -> None:
    look(page, server, "drawn.links.length", view="heads", trace=next(iter(library.traces)))
    if opened == "Proof":
        page.locator(".foot .badge").click()
    else:
        page.keyboard.press("?")
    page.get_by_role("dialog", name=opened).wait_for()
    assert problems(page) == []
