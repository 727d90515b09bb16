"""Two layers side by side in the Heads view: each has its own weights, and what is chosen is chosen in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser_page import drawn, look
from tests.support.heads_page import CALL, READY, same, weights

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from regard.seeing import Seen
    from regard.viewer.server import Server


PAIRED = "drawn.links.length && drawn.other?.links.length"


def pane(page: Page, at: int) -> dict[str, float]:
    box = page.locator(".layer-column .drawing").nth(at).bounding_box()
    assert box is not None
    return dict(box)


@pytest.mark.parametrize("size", [(390, 844), (1024, 768), (1440, 900)])
def test_two_layers_side_by_side(page: Page, server: Server, minilm: Seen, trace: str, size: tuple[int, int]) -> None:
    """A second layer beside the first, or below it on a phone: its own weights, and the same token chosen in both."""
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    look(page, server, READY, view="heads", trace=trace, call=str(CALL), pins=["q3"])
    page.get_by_label("Compare layers").check()
    drawing = drawn(page, PAIRED)
    assert drawing["other"]["call"] == str(CALL + 1)
    page.get_by_label("with layer").select_option("5")
    drawing = drawn(page, f"{PAIRED} && drawn.other.call === '5'")
    same(drawing["links"], weights(minilm))
    same(drawing["other"]["links"], weights(minilm, 5))
    assert {link["query"] for link in drawing["links"] + drawing["other"]["links"]} == {3}
    first, second = pane(page, 0), pane(page, 1)
    below = width < 700
    assert (second["y"] >= first["y"] + first["height"]) == below
    assert (second["x"] >= first["x"] + first["width"]) == (not below)
    assert min(first["width"], second["width"]) > 0.3 * width
    assert max(first["height"], second["height"]) < 0.8 * height
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator(".panel-title").all_inner_texts() == [f"Layer {CALL}", "Layer 5"]
    # The words beside them are of both, and say where they differ most.
    means = [weights(minilm, call)[:, 3].mean(0) for call in (CALL, 5)]
    most = int((means[0] - means[1]).abs().argmax())
    assert page.locator(".difference").get_attribute("data-at") == str(most)
    assert page.locator("aside .layer-name").all_inner_texts() == [f"Layer {CALL}", "Layer 5"]
    # What is touched in the second is chosen in both.
    row = page.evaluate("regard.drawn().row")
    page.locator(".layer-column .drawing").nth(1).scroll_into_view_if_needed()
    second = pane(page, 1)
    page.mouse.click(second["x"] + 30, second["y"] + 12 + 4.5 * row)
    page.mouse.move(5, 5)
    drawing = drawn(page, f"{PAIRED} && drawn.focus.length === 1 && drawn.focus[0].at === 4")
    assert {link["query"] for link in drawing["links"] + drawing["other"]["links"]} == {4}
    page.get_by_label("Compare layers").uncheck()
    drawn(page, "drawn.other === null")
    assert page.locator(".layer-column").count() == 1


def test_two_layers_in_the_link_the_figure_and_the_table(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    look(page, server, READY, view="heads", trace=trace, call="0", pins=["q3"])
    page.keyboard.press("c")
    drawn(page, f"{PAIRED} && drawn.other.call === '1'")
    page.keyboard.press("}")
    page.keyboard.press("}")
    page.keyboard.press("{")
    drawn(page, f"{PAIRED} && drawn.other.call === '2'")
    link = page.evaluate("regard.link()")
    figure = page.evaluate("regard.figure()")
    assert "layer 0 · layer 2" in figure
    assert ">Layer 0</text>" in figure
    assert ">Layer 2</text>" in figure
    rows = page.evaluate("regard.table()")[1:]
    assert {row[0] for row in rows} == {minilm[0].name, minilm[2].name}
    for row in rows:
        call = 0 if row[0] == minilm[0].name else 2
        assert row[-1] == pytest.approx(
            float(weights(minilm, call)[row[1], 3, row[4]]), rel=1e-5
        )  # float32, not the float16 that is drawn
    page.goto("about:blank")
    page.goto(link)
    drawn(page, f"{PAIRED} && drawn.call === '0' && drawn.other.call === '2'")
    page.keyboard.press("c")
    drawn(page, "drawn.other === null")
    # A text that is longer than the window is scrolled in both.
    page.set_viewport_size({"width": 1024, "height": 480})
    page.keyboard.press("c")
    drawn(page, PAIRED)
    page.evaluate("document.querySelectorAll('.layer-column .drawing')[1].scrollTop = 40")
    page.wait_for_function("() => document.querySelector('.layer-column .drawing').scrollTop === 40")


def test_the_figure_on_a_phone_has_every_token(page: Page, server: Server, trace: str) -> None:
    """A phone shows a part of each layer. The figure has all tokens of a short text, and below them the legend."""
    page.set_viewport_size({"width": 390, "height": 844})
    look(page, server, PAIRED, view="heads", trace=trace, call=str(CALL), other="5", pins=["q3"])
    places: dict[str, list[float]] = page.evaluate(
        """async () => {
            const svg = new DOMParser().parseFromString(await regard.figure(), "image/svg+xml").documentElement;
            document.body.append(svg);
            const places = {};
            for (const node of svg.querySelectorAll("text"))
                (places[node.textContent] ??= []).push(node.getBoundingClientRect().top);
            svg.remove();
            return places;
        }"""
    )
    assert len(places.get("[SEP]", [])) == 4  # the last query and the last key, of two layers
    assert min(places["head 0"]) > max(places["[SEP]"])
