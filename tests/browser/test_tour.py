"""The tour: offered to who comes the first time; it goes by itself, says what it shows, and ends on a surprise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.viewer.library import Library
from regard.viewer.trace_view import STATE, first_trace
from tests.support.browser_page import drawn, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from regard.viewer.server import Server


@pytest.fixture(scope="module")
def fresh() -> Iterator[Server]:
    from regard.viewer.server import serving

    library = Library([first_trace()])
    library.opening = dict(STATE)
    with serving(library) as server:
        yield server


def first_time(browser: Browser, motion: str = "reduce", width: int = 1280) -> Page:
    context = browser.new_context(viewport={"width": width, "height": 800}, reduced_motion=motion)  # type: ignore[arg-type]
    return context.new_page()


@pytest.mark.parametrize("width", [1280, 390])
def test_it_goes_by_itself_and_ends_on_a_surprise(browser: Browser, fresh: Server, width: int) -> None:
    page = first_time(browser, width=width)
    page.goto(fresh.url)
    drawn(page, "drawn.links.length")
    offer = page.get_by_role("button", name="take the tour")
    assert page.evaluate("document.activeElement === document.body")  # it takes no focus
    offer.click()
    assert offer.count() == 0
    line = page.get_by_role("status", name="Tour")
    line.get_by_text("Surprise: head 5.11 looks at “cat” from every word.").wait_for()
    state = page.evaluate("regard.state.get()")
    assert (state["call"], state["heads"], state["pins"]) == ("5", [11], ["k2"])
    stage, said = page.locator(".stage").bounding_box(), line.bounding_box()
    assert stage is not None
    assert said is not None
    assert said["y"] >= stage["y"] + stage["height"] - 1  # it hides nothing of the picture
    line.get_by_role("button", name="Close").click()
    assert not line.is_visible()
    page.reload()
    drawn(page, "drawn.links.length")
    assert offer.count() == 0
    settings(page)
    page.get_by_role("button", name="Tour").click()
    line.wait_for()
    page.keyboard.press("Escape")
    assert not line.is_visible()
    page.context.close()


def test_who_presses_something_goes_on_alone(browser: Browser, fresh: Server) -> None:
    page = first_time(browser, "no-preference")
    page.goto(f"{fresh.url}#view=lookup")
    page.wait_for_selector(".lookup-table")
    assert page.get_by_role("button", name="take the tour").count() == 0  # a link is not interrupted
    settings(page)
    page.get_by_role("button", name="Tour").click()
    page.wait_for_function("() => regard.state.get().pins")  # it chooses one word after another
    page.get_by_role("button", name="Clear").click()
    page.wait_for_timeout(2500)
    assert page.evaluate("regard.state.get().pins") is None
    page.context.close()
