"""The tour: offered to who comes the first time, begun when asked for, and it does what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.browser_page import drawn

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from regard.viewer.server import Server


def first_time(browser: Browser, motion: str = "reduce") -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion=motion).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(60_000)
    return page


def test_it_acts_in_every_view_it_names(browser: Browser, server: Server) -> None:
    page = first_time(browser)
    page.set_default_timeout(60_000)  # a model reads the sentence that the tour types
    page.goto(server.url)
    drawn(page, "drawn.links.length")  # what is there to look at is what opens
    assert page.evaluate("regard.state.get().view") == "heads"
    assert not page.locator(".tour").is_visible()
    before = page.evaluate("regard.state.get()")
    assert "trace" not in before
    page.get_by_role("button", name="Take the tour").press("Enter")
    assert page.locator(".offer").count() == 0
    deeds = {  # what each step does to the page
        "Who looks at whom": "() => regard.state.get().pins && regard.drawn().focus.length === 1",
        "All heads at once": "() => regard.state.get().call === '5' && regard.state.get().head === 11",
        "Two layers side by side": "() => regard.state.get().map?.other?.call === '5'",
        "A sentence of your own": "() => regard.state.get().trace",
        "Take it along": "() => document.querySelector('.tools.toured')",
    }
    for step, (title, done) in enumerate(deeds.items()):
        page.wait_for_selector(f".tour:has-text('{step + 1} of {len(deeds)}')")
        assert page.inner_text(".tour h2") == title
        page.wait_for_function(done)
        assert page.evaluate("document.querySelector('.tour').contains(document.activeElement)")
        page.locator(".tour .primary").press("Enter")
    page.wait_for_selector(".tour", state="hidden")
    assert page.evaluate("regard.state.get()") == before  # where it began
    assert page.evaluate("document.querySelector('.stage').getAnimations().length") == 0  # reduced motion
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


def test_the_offer_goes_with_the_first_action(browser: Browser, server: Server) -> None:
    page = first_time(browser)
    page.goto(server.url)
    offer = page.get_by_role("region", name="Offer of a tour")
    offer.wait_for()
    page.get_by_role("tab", name="Model", exact=True).click()
    offer.wait_for(state="detached")
    page.context.close()


def test_a_link_is_not_interrupted_and_the_page_stays_usable(browser: Browser, server: Server) -> None:
    page = first_time(browser, "no-preference")
    page.goto(f"{server.url}#view=lookup")
    page.wait_for_selector(".lookup-table")
    assert page.locator(".offer").count() == 0
    assert not page.locator(".tour").is_visible()
    page.get_by_role("button", name="Tour").click()
    page.wait_for_function("() => regard.state.get().pins")  # it chooses one word after another
    motion = "(view) => { regard.state.set({ view }); return regard.state.get().view }"
    assert page.evaluate(motion, "lookup") == "lookup"
    page.wait_for_function("() => document.querySelector('.stage').getAnimations().length")  # it moves
    page.get_by_role("button", name="Phone book").click()  # under the tour, which stops
    assert page.inner_text(".result") == "z = 555-5678"
    pins = page.evaluate("regard.state.get().pins")
    page.wait_for_timeout(1500)
    assert page.evaluate("regard.state.get().pins") == pins
    page.context.close()
