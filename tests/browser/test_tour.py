"""The tour: offered to who comes the first time, begun when asked for, not offered to who follows a link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.browser_page import drawn

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from regard.viewer.http.server import Server


def first_time(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.set_default_timeout(15_000)
    return page


def test_first_use_shows_every_view_it_names(browser: Browser, server: Server) -> None:
    page = first_time(browser)
    page.goto(server.url)
    drawn(page, "drawn.links.length")  # what is there to look at is what opens
    assert page.evaluate("regard.state.get().view") == "heads"
    assert not page.locator(".tour").is_visible()
    page.get_by_role("button", name="Take the tour").press("Enter")
    assert page.locator(".offer").count() == 0
    seen = []
    for step in range(8):
        page.wait_for_selector(f".tour:has-text('{step + 1} of 8')")
        seen.append((page.inner_text(".tour h2"), page.evaluate("regard.state.get().view")))
        page.locator(".tour .primary").press("Enter")
    page.wait_for_selector(".tour", state="hidden")
    assert [view for _, view in seen] == ["lookup", "translate", "heads", "model", "map", "inside", "inside", "inside"]
    assert len({title for title, _ in seen}) == len(seen)
    assert page.evaluate("regard.state.get().view") == "heads"  # where it began
    page.goto("about:blank")
    page.goto(server.url)
    page.wait_for_selector(".tools")
    drawn(page, "drawn.links.length")
    assert page.locator(".offer").count() == 0
    assert not page.locator(".tour").is_visible()
    page.get_by_role("button", name="Tour").click()
    assert page.locator(".tour").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".tour").is_visible()
    page.context.close()


def test_the_offer_is_declined_by_keyboard_once(browser: Browser, server: Server) -> None:
    page = first_time(browser)
    page.goto(server.url)
    offer = page.get_by_role("region", name="Offer of a tour")
    offer.wait_for()
    assert page.evaluate("document.activeElement === document.body")  # it takes no focus
    under = page.evaluate("document.querySelector('.offer').getBoundingClientRect().bottom")
    assert page.evaluate("document.querySelector('.bar').getBoundingClientRect().top") >= under  # it covers nothing
    page.get_by_role("button", name="Keyboard shortcuts").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Take the tour"
    page.keyboard.press("Escape")
    assert offer.count() == 0
    assert page.evaluate("document.activeElement.className") == "stage"
    page.reload()
    drawn(page, "drawn.links.length")
    assert offer.count() == 0
    page.context.close()


def test_a_link_is_not_interrupted_and_the_page_stays_usable(browser: Browser, server: Server) -> None:
    page = first_time(browser)
    page.goto(f"{server.url}#view=lookup")
    page.wait_for_selector(".lookup-table")
    assert page.locator(".offer").count() == 0
    assert not page.locator(".tour").is_visible()
    page.get_by_role("button", name="Tour").click()
    page.get_by_role("button", name="Phone book").click()  # under the tour
    assert page.inner_text(".result") == "z = 555-5678"
    page.context.close()
