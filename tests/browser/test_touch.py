"""A finger on a phone: what it taps is read, and one line of the words below is in sight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser_page import drawn, look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from regard.seeing import Seen
    from regard.viewer.server import Server


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    context.add_init_script("localStorage.setItem('regard-tour', 'done')")
    yield context.new_page()
    context.close()


def in_sight(page: Page, selector: str) -> bool:
    """Whether the top of an element is on the screen."""
    box = page.locator(selector).bounding_box()
    return box is not None and 0 <= box["y"] < 844


def test_a_tap_on_the_map_reads_a_weight(phone: Page, server: Server, minilm: Seen, trace: str) -> None:
    look(phone, server, "drawn.pending === 0", view="map", trace=trace, call="2", head=3)
    box = phone.locator(".map-column canvas").first.bounding_box()
    x, y = phone.evaluate("regard.drawn().cell(4, 7).pixel")
    assert box is not None
    phone.touchscreen.tap(box["x"] + x, box["y"] + y)
    assert drawn(phone, "drawn.cross")["cross"] == {"row": 4, "column": 7}
    weight = float(minilm[2].weights[0, 3].tile(4, 7))
    said = phone.locator(".said")
    assert minilm.tokens is not None
    said.filter(has_text=f"{minilm.tokens[0][4]} → {minilm.tokens[0][7]}: ").wait_for()  # the weight is fetched first
    assert float(said.inner_text().split(": ")[-1]) == pytest.approx(weight, rel=0.01)


def test_a_tap_on_a_head_says_what_it_does(phone: Page, server: Server, trace: str) -> None:
    look(phone, server, "drawn.thumbs && drawn.cells[0].scores", view="model", trace=trace)
    phone.locator(".thumb").nth(2).tap()
    phone.locator(".said", has_text="Head 0.2 looks at the previous").wait_for()
    assert in_sight(phone, ".said")
