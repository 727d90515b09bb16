"""One file, from disk, with no network: the same views, the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.support.browser_page import drawn, open_view
from tests.support.viewer_client import seen_of

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from regard.seeing import Seen


@pytest.fixture(scope="module")
def file(minilm: Seen, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "trace.html"
    minilm.to_html(path)
    return path


def test_from_disk_with_the_network_blocked(page: Page, file: Path, minilm: Seen) -> None:
    page.context.set_offline(True)
    page.goto(f"{file.as_uri()}#view=heads&call=%222%22&pins=%5B%22q3%22%5D")
    drawing = drawn(page, "drawn.links.length")
    w = torch.stack([minilm[2].head(head).dense() for head in range(12)])
    for link in drawing["links"]:
        assert link["weight"] == pytest.approx(float(w[link["head"], link["query"], link["key"]]), rel=1e-3)
    assert len(drawing["links"]) == int((w[:, 3] >= 1 / 255).sum())
    page.keyboard.press("w")
    drawn(page, "drawn.level === 'word' && drawn.links.length")
    open_view(page, "Model")
    ready = "drawn.thumbs && drawn.cells[0].scores && 'entropy' in drawn.cells[0].values"
    cells = drawn(page, ready)["cells"]
    assert [cell["labels"] for cell in cells][2][0] == "previous"
    page.get_by_role("button", name="Layer 0, head 2").click()
    large = drawn(page, "drawn.large")["large"]
    expected = minilm[0].head(2).dense()
    torch.testing.assert_close(torch.tensor(large["data"]).view(large["shape"]), expected, rtol=1e-3, atol=1e-4)


def test_it_says_what_it_does_not_hold(browser: Browser, file: Path) -> None:
    context = browser.new_context(offline=True)
    page = context.new_page()
    try:
        page.goto(f"{file.as_uri()}#view=heads")
        drawn(page, "drawn.links.length")
        assert page.get_by_label("Trace").locator("option").count() == 1  # no model to read another text
        assert "regard view" in page.evaluate(
            "() => new Promise((done) => regard.source.post().catch((e) => done(e.message)))"
        )
    finally:
        context.close()


def test_it_opens_on_the_trace_and_offers_the_tour(browser: Browser, file: Path) -> None:
    page = browser.new_context(offline=True).new_page()
    page.goto(file.as_uri())
    drawn(page, "drawn.links.length")
    assert page.evaluate("regard.state.get().view") == "heads"
    assert not page.locator(".tour").is_visible()
    assert page.get_by_role("button", name="Take the tour").is_visible()
    page.context.close()


def test_views_it_cannot_fill_say_so_in_plain_words(page: Page, file: Path) -> None:
    for view, words in {
        "neuron": "not the queries and keys they come from",
        "translate": "A single file runs no model",
    }.items():
        page.goto("about:blank")
        page.goto(f"{file.as_uri()}#view={view}")
        said = page.locator(".stage .empty")
        said.wait_for()
        assert words in said.inner_text()
        assert "regard view" in said.inner_text()
        assert not page.get_by_role("alert").is_visible()


def test_a_long_text_opens_as_a_map(page: Page, tmp_path: Path) -> None:
    seen_of({}, length=301, heads=1, batch=1).to_html(tmp_path / "trace.html", size=64)
    page.goto((tmp_path / "trace.html").as_uri())
    drawn(page, "drawn.pending === 0 && drawn.cell(0, 0).value != null")
    assert page.evaluate("regard.state.get().view") == "map"
    caption = page.locator(".map-caption")
    page.keyboard.press("+")  # finer than what it holds
    page.wait_for_function("() => document.querySelector('.map-caption').textContent.includes('no finer')")
    assert "/api/" not in caption.inner_text()
    assert page.locator("nav [data-name=heads]").get_attribute("hidden") is not None  # only what it can serve
    page.evaluate("regard.state.set({ view: 'heads' })")
    said = page.locator(".stage .empty")
    said.wait_for()
    assert "larger size" in said.inner_text()


def test_the_maps_cells(page: Page, tmp_path: Path) -> None:
    """Of an odd number of tokens: cells are of powers of two, the last smaller, as the server's."""
    seen = seen_of({}, length=701, heads=1, batch=1)
    seen.to_html(tmp_path / "trace.html", size=1024)
    page.goto(f"{(tmp_path / 'trace.html').as_uri()}#view=map")
    drawing = drawn(page, "drawn.pending === 0 && drawn.cell(0, 0).value != null")
    assert drawing["level"] == 1
    places = [(0, 0), (7, 530), (550, 699), (601, 77), (699, 613), (700, 700)]
    cells = page.evaluate("(all) => all.map(([r, c]) => regard.drawn().cell(r, c))", places)
    w = seen[0].head(0).dense()
    for (row, column), cell in zip(places, cells, strict=True):
        part = w[row // 2 * 2 :, column // 2 * 2 :][:2, :2]
        assert cell["value"] == pytest.approx(float(part.amax()), rel=2e-3)
        assert cell["cell"] == list(part.shape)
