"""The Model view: maps, statistics and patterns are the library's, and choosing, sorting and keys work on them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from regard import watch
from regard.seeing.analysis import Patterns
from regard.viewer.trace_view import TraceView
from tests.support.browser_page import drawn, look

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from regard.seeing import Seen
    from regard.viewer.library import Library
    from regard.viewer.server import Server

READY = "drawn.thumbs && drawn.cells[0].scores && 'entropy' in drawn.cells[0].values"

SETTINGS = True  # unfolded


def test_maps_figures_and_labels(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    drawing = look(page, server, READY, view="model", trace=trace)
    heads = [(call, head) for call in range(6) for head in range(12)]
    assert [(int(cell["call"]), cell["head"]) for cell in drawing["cells"]] == heads
    maps = torch.tensor(drawing["thumbs"]["data"]).view(drawing["thumbs"]["shape"])
    length = minilm[0].shape[-1]
    places = torch.arange(32) * length // 32  # fewer tokens than cells: each is repeated
    for at in (2, 20, 71):
        call, head = heads[at]
        w = minilm[call].head(head).dense()
        expected = 255 * (w / w.max()).sqrt()
        torch.testing.assert_close(maps[at].float(), expected[places][:, places], atol=0.51, rtol=0)
        assert drawing["thumbs"]["peaks"][at] == pytest.approx(float(w.max()), rel=1e-4)
        entropy = -(w * w.clamp_min(1e-30).log()).sum(-1).mean()
        assert drawing["cells"][at]["values"]["entropy"] == pytest.approx(float(entropy), rel=1e-3)
        assert drawing["cells"][at]["values"]["sink"] == pytest.approx(float(w[:, 0].mean()), rel=1e-3)
    patterns = Patterns()
    assert minilm.text is not None
    patterns.add(minilm, minilm.text)
    for cell, head in zip(drawing["cells"], patterns.heads(), strict=True):
        assert cell["labels"] == head.labels
        assert cell["scores"]["previous"] == pytest.approx(head.scores["previous"], abs=1e-5)
    button = page.get_by_role("button", name="Layer 0, head 2, previous")
    assert button.locator(".label").all_inner_texts() == ["previous", "positional"]


BELOW = """() => [...document.querySelectorAll('.thumb')].map((thumb) => {
    const words = [...thumb.querySelectorAll('.name, .label')].map((node) => {
        const range = document.createRange();
        range.selectNodeContents(node);
        return range.getBoundingClientRect();
    });
    const map = thumb.querySelector('canvas').getBoundingClientRect();
    const cut = [...thumb.querySelectorAll('.label')].filter((one) => one.scrollWidth > one.clientWidth + 1);
    return { left: map.left, top: map.top, right: Math.max(...words.map((box) => box.right)), cut: cut.length };
})"""


def apart(page: Page) -> None:
    """What stands below a map ends before the next one of its row, and no word is cut."""
    cells = page.evaluate(BELOW)
    for cell, after in pairwise(cells):
        assert cell["cut"] == 0
        assert cell["top"] != after["top"] or cell["right"] < after["left"]


def test_the_rarest_pattern_comes_first_and_no_word_is_cut(page: Page, server: Server, trace: str) -> None:
    cells = look(page, server, READY, view="model", trace=trace)["cells"]
    counts = Counter(label for cell in cells for label in cell["labels"])
    assert counts["sink"] > counts["next"] > 0
    shown = page.evaluate(
        "[...document.querySelectorAll('.thumb')].map((x) => [...x.querySelectorAll('.label')].map((y) => y.innerText))"
    )
    for cell, badges in zip(cells, shown, strict=True):
        assert badges == sorted(cell["labels"], key=lambda label: counts[label])
    assert page.get_by_role("button", name="Layer 1, head 8, next, sink").is_visible()
    assert page.locator(".thumb .label", has_text="sink").first.get_attribute("class") == "label common"
    for width in (1280, 900):
        page.set_viewport_size({"width": width, "height": 800})
        apart(page)


def test_long_names_of_modules(page: Page, server: Server, library: Library) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"sequence_to_sequence": nn.Transformer(16, 8, 1, 2, 16, batch_first=True)}).eval()
    with torch.no_grad(), watch(model) as seen:
        model["sequence_to_sequence"](torch.randn(1, 9, 16), torch.randn(1, 7, 16))
    shown = TraceView.of(seen, "deep")
    library.add(shown)
    look(page, server, "drawn.links.length", view="heads", trace=shown.id)
    layers = page.get_by_label("Layer").locator("option").all_inner_texts()  # the part that tells them apart
    assert [name.split(" ")[0] for name in layers] == [x.name.removeprefix("sequence_to_sequence.") for x in seen]
    look(page, server, "drawn.thumbs", view="model", trace=shown.id)
    assert page.locator(".layer-name").all_inner_texts() == [call.name for call in seen]
    apart(page)
    last = seen[-1].name
    button = page.get_by_role("button", name=f"Layer {last}, head 7")
    assert button.get_attribute("title") == f"Layer {last}, head 7"
    svg = page.evaluate("regard.picture()")
    assert all(f">{call.name}<" in svg for call in seen)
    page.get_by_label("Order by").select_option("entropy")
    drawn(page, "drawn.sort === 'entropy'")
    assert button.locator(".name").inner_text() == f"{last.removeprefix('sequence_to_sequence.')}.7"
    apart(page)


def test_sorting_and_choosing(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    look(page, server, READY, view="model", trace=trace)
    page.get_by_label("Order by").select_option("previous")
    cells = drawn(page, "drawn.sort === 'previous'")["cells"]
    scores = [cell["scores"]["previous"] for cell in cells]
    assert scores == sorted(scores, reverse=True)
    first = page.locator(".thumb").first
    assert first.get_attribute("aria-label") == f"Layer 0, head 2, previous, positional: previous {scores[0]:.3f}"
    first.click()
    large = drawn(page, "drawn.large")["large"]
    w = minilm[0].head(2).dense()
    torch.testing.assert_close(torch.tensor(large["data"]).view(large["shape"]), w, atol=1e-6, rtol=1e-4)
    assert "Head 0.2" in page.locator("aside h2").inner_text()
    row = page.locator("aside tr", has_text="previous")
    assert row.locator("td").first.inner_text() == f"{scores[0]:.3f}"
    page.keyboard.press("ArrowRight")  # the next best
    second = drawn(page)["cells"][1]
    assert f"Head {second['call']}.{second['head']}" in page.locator("aside h2").inner_text()
    page.locator("aside").get_by_role("button", name="Heads").click()
    opened = drawn(page, "drawn.links?.length")
    assert (opened["call"], opened["active"]) == (second["call"], [second["head"]])
    page.go_back()
    assert drawn(page, f"drawn.sort === 'previous' && {READY}")["cells"][1]["head"] == second["head"]


def test_export(page: Page, server: Server, trace: str) -> None:
    look(page, server, READY, view="model", trace=trace)
    svg = page.evaluate("regard.picture()")
    assert svg.count("<image") == 72
    table = page.evaluate("regard.table()")
    assert len(table) == 73
    assert table[0][:3] == ["layer", "head", "entropy"]


def test_a_large_map_is_asked_for_until_it_is_whole(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    whole = False

    def partly(route: Route) -> None:
        answer = route.fetch()
        if whole:
            route.fulfill(response=answer)
        else:
            partial_headers = {**answer.headers, "x-computed": "0.2500", "x-note": "cells moved to multiples of 4"}
            route.fulfill(status=202, headers=partial_headers, body=bytes(len(answer.body())))

    page.route("**/tile?*", partly)
    look(page, server, READY, view="model", trace=trace, call="0", head=2)
    scale = page.locator("canvas.big + p")
    page.wait_for_function("() => document.querySelector('canvas.big + p').textContent.includes('25 % of it')")
    assert "cells moved to multiples of 4" in scale.inner_text()
    whole = True
    large = drawn(page, "drawn.large?.computed === 1")["large"]
    expected = minilm[0].head(2).dense()
    torch.testing.assert_close(torch.tensor(large["data"]).view(large["shape"]), expected, atol=1e-6, rtol=1e-4)
    assert "computed" not in scale.inner_text()


def test_maps_of_a_long_text_come_layer_by_layer(page: Page, server: Server, library: Library) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(8, 4, batch_first=True) for _ in range(2))

        def forward(self, x: torch.Tensor) -> None:
            for layer in self.layers:
                layer(x, x, x, need_weights=False)

    torch.manual_seed(0)
    with torch.no_grad(), watch(model := Layers().eval()) as seen:
        model(torch.randn(1, 3000, 8))
    long = TraceView.of(seen, "long")
    library.add(long)
    held: list[Route] = []
    page.route("**/thumbs?*call=1*", lambda route: held.append(route))
    look(page, server, "drawn.thumbs?.peaks.length === 4", view="model", trace=long.id)
    page.get_by_text("Computing the maps: 1 of 2 layers are here.").wait_for()
    held[0].continue_()
    drawn(page, "drawn.thumbs?.peaks.length === 8")
    page.get_by_text("Computing the maps").wait_for(state="hidden")


def test_the_server_says_what_a_cell_is(page: Page, server: Server, trace: str) -> None:
    def noted(route: Route) -> None:
        answer = route.fetch()
        headers = {name: value for name, value in answer.headers.items() if name != "content-encoding"}
        route.fulfill(response=answer, headers={**headers, "x-note": "a row of cells shows one query"})

    page.route("**/thumbs?*", noted)
    look(page, server, READY, view="model", trace=trace)
    words = page.locator(".plain > p").inner_text()
    assert words.startswith("A row of cells shows one query; ")
    assert "A cell is" not in words
