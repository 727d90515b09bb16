"""Every view on a phone, a tablet and a desktop: nothing is cut off, and what it draws has room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser_page import link, settle

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from regard.viewer.library import Library
    from regard.viewer.server import Server

WIDTHS = {"phone": (390, 844), "tablet": (1024, 768), "desktop": (1440, 900)}
ROOMS = ".stage .drawing, .stage .lookup-stage, .stage .translate, .stage .empty"
MEASURE = """(ROOMS) => {
    const inside = (box) => box.left >= -1 && box.right <= innerWidth + 1;
    const box = (selector) => document.querySelector(selector)?.getBoundingClientRect();
    const share = (one) => Math.min(one.clientWidth / innerWidth, one.clientHeight / innerHeight);
    const drawings = [...document.querySelectorAll(ROOMS)];
    const small = [...document.querySelectorAll("input[type=checkbox]")].filter((one) => {
        const { width, height } = one.getBoundingClientRect();
        return width > 0 && (width < 24 || height < 24);
    });
    return {
        wide: document.documentElement.scrollWidth - innerWidth,
        tab: inside(box(".tabs [data-open]")),
        tools: inside(box(".tools")),
        large: Math.max(...drawings.map(share)),
        aside: [...document.querySelectorAll(".stage .aside")].every((one) => inside(one.getBoundingClientRect())),
        small: small.length,
        cut: [...document.querySelectorAll(".stage .footer")].filter((one) => one.scrollWidth > one.clientWidth).length,
    };
}"""


@pytest.mark.parametrize("screen", WIDTHS)
def test_every_view_has_room(page: Page, server: Server, library: Library, screen: str) -> None:
    width, height = WIDTHS[screen]
    page.set_viewport_size({"width": width, "height": height})
    trace = next(iter(library.traces))
    page.goto(link(server, view="heads", trace=trace, pins=["q3"]))
    for view in page.evaluate("() => regard.views"):
        page.evaluate("(view) => regard.state.set({ view })", view)
        page.locator(f".stage[data-view={view}] > :not(.folds)").first.wait_for()
        settle(page)
        found = page.evaluate(MEASURE, ROOMS)
        assert found["wide"] <= 0, view
        assert found["tab"], view
        assert found["tools"], view
        assert found["aside"], view
        assert found["large"] > 0.2, (view, found)
        assert found["small"] == 0, view
        assert found["cut"] == 0, view
