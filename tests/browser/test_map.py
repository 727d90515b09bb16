"""Map: what is drawn at every zoom against the library's weights, and moving over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from tests.support.browser_page import drawn, look, on_model_worker, settle
from tests.support.viewer_client import seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from regard.attention import Weights
    from regard.seeing import Seen
    from regard.viewer.library import Library
    from regard.viewer.server import Server

LONG, HEADS = 1500, 2
READY = "drawn.pending === 0"

SETTINGS = True  # unfolded


class Attention(nn.Module):
    """One causal call, of which every key is found again by queries near it."""

    def forward(self, length: int) -> torch.Tensor:
        g = torch.Generator().manual_seed(0)
        time = torch.arange(length)[:, None] / torch.logspace(0, 3, 8)
        k = 2 * torch.cat([time.cos(), time.sin()], -1) + 0.3 * torch.randn(1, HEADS, length, 16, generator=g)
        q = k + 0.5 * torch.randn(k.shape, generator=g)
        return scaled_dot_product_attention(q, k, k, is_causal=True)


def watched(tokens: list[str]) -> Seen:
    model = Attention()
    with torch.no_grad(), regard.watch(model) as seen:
        model(len(tokens))
    seen.tokens = [tokens]
    return seen


@pytest.fixture(scope="module")
def long() -> Seen:
    return watched([f"w{i}" for i in range(LONG)])


@pytest.fixture(scope="module")
def pieces() -> Seen:
    return watched(["[CLS]", "un", "##comfort", "##able", "cats", "sat", "un", "##minded", ".", "[SEP]"])


@pytest.fixture(scope="module")
def own(long: Seen, minilm: Seen, pieces: Seen) -> Iterator[tuple[Server, str, str]]:
    """A server with a long trace and MiniLM's, and their ids; and one of words in pieces."""
    from regard.viewer.library import Library
    from regard.viewer.server import serving
    from regard.viewer.trace_view import TraceView

    traces = [TraceView.of(long, "long"), TraceView.of(minilm, "MiniLM"), TraceView.of(pieces, "pieces")]
    with serving(Library(traces)) as server:
        yield server, traces[0].id, traces[1].id


def cells(page: Page, places: list[tuple[int, int]], at: int = 0) -> list[dict[str, Any]]:
    drawing: list[dict[str, Any]] = page.evaluate(
        "([all, at]) => all.map(([r, c]) => regard.drawn().cell(r, c, at))", [places, at]
    )
    return drawing


def weights_of(seen: Seen, call: int, head: int) -> Weights:
    return seen[call].weights[0, head]


@pytest.mark.parametrize("scale", [None, 0.6, 12])
def test_cells_are_the_librarys(page: Page, own: tuple[Server, str, str], long: Seen, scale: float | None) -> None:
    server, trace, _ = own
    view = {} if scale is None else {"x": 700, "y": 720, "scale": scale}
    drawing = look(page, server, READY, view="map", trace=trace, head=1, map=view)
    side = 2 ** drawing["level"]
    assert side == {None: 4, 0.6: 2, 12: 1}[scale]
    weights = weights_of(long, 0, 1)
    some = [(700, 690), (731, 700), (740, 740), (702, 733)] + ([(0, 0), (LONG - 1, LONG - 1)] if scale is None else [])
    for (row, column), cell in zip(some, cells(page, some), strict=True):
        i, j = (slice(x // side * side, min(x // side * side + side, LONG)) for x in (row, column))
        tile = weights.tile(i, j)
        assert cell["value"] == pytest.approx(float(tile.amax()), rel=1e-4, abs=1e-7)
        assert cell["cell"] == list(tile.shape)
    said = page.inner_text(".map-caption")
    assert (
        "Each cell is one weight." if side == 1 else f"Each cell is the largest of {side} × {side} weights."
    ) in said


def test_colours_are_those_of_the_weights(page: Page, own: tuple[Server, str, str], long: Seen) -> None:
    server, trace, _ = own
    look(page, server, READY, view="map", trace=trace, map={"x": 700, "y": 710, "scale": 20})
    settle(page)
    weights = weights_of(long, 0, 0)
    for row, column in ((700, 699), (705, 690), (712, 701), (700, 708)):
        colour, expected = page.evaluate(
            """async ([row, column, weight, keys]) => {
                const { shader } = await import("/static/draw/colors.js");
                const { makePalette } = await import("/static/draw/colors.js");
                const canvas = document.querySelector(".map-column canvas");
                const { pixel } = regard.drawn().cell(row, column);
                const scale = canvas.width / canvas.clientWidth;
                const [r, g, b] = canvas.getContext("2d").getImageData(pixel[0] * scale, pixel[1] * scale, 1, 1).data;
                return [`rgb(${r},${g},${b})`, makePalette("light").ramp(shader("log", keys)(weight))];
            }""",
            [row, column, float(weights.tile(row, column)), LONG],
        )
        assert colour == expected


def test_pointing_reads_the_weight_with_its_tokens(page: Page, own: tuple[Server, str, str], minilm: Seen) -> None:
    server, _, trace = own
    look(page, server, READY, view="map", trace=trace, call="2", head=5)
    row, column = 3, 6
    box = page.locator(".map-column canvas").first.bounding_box()
    (cell,) = cells(page, [(row, column)])
    assert box is not None
    x, y = cell["pixel"]  # type: ignore[misc]
    page.mouse.move(box["x"] + x, box["y"] + y)
    drawing = drawn(page, "drawn.readings.length")
    expected = float(weights_of(minilm, 2, 5).tile(row, column))
    assert drawing["cross"] == {"row": row, "column": column}
    assert drawing["readings"][0]["value"] == pytest.approx(expected, abs=1e-6)
    settle(page)
    assert page.inner_text(".map-value") == (f"{expected:.5f}" if expected >= 1e-3 else page.inner_text(".map-value"))
    assert minilm.tokens is not None
    marked = page.locator(".map-context mark").all_inner_texts()
    assert marked == [minilm.tokens[0][row].removeprefix("##"), minilm.tokens[0][column].removeprefix("##")]


def test_wheel_drag_and_keys_move_it(page: Page, own: tuple[Server, str, str]) -> None:
    server, trace, _ = own
    before = look(page, server, READY, view="map", trace=trace)["camera"]
    box = page.locator(".map-column canvas").first.bounding_box()
    assert box is not None
    x, y = box["x"] + 400, box["y"] + 350
    page.mouse.move(x, y)
    place = page.evaluate("regard.drawn().cross")
    for _ in range(6):
        page.mouse.wheel(0, -200)
    settle(page)
    zoomed = page.evaluate("regard.drawn()")
    assert zoomed["camera"]["scale"] == pytest.approx(before["scale"] * 11.02, rel=0.02)  # e^(6 · 200 · 0.002)
    assert abs(zoomed["cross"]["row"] - place["row"]) <= 4  # what was under the pointer still is
    assert abs(zoomed["cross"]["column"] - place["column"]) <= 4
    page.mouse.down()
    page.mouse.move(x - 100, y - 50, steps=4)
    page.mouse.up()
    dragged = page.evaluate("regard.drawn().camera")
    wide = dragged["scale"] * dragged["stretch"]  # pixels of a weight across
    assert dragged["x"] - zoomed["camera"]["x"] == pytest.approx(100 / wide, rel=0.05)
    assert dragged["y"] - zoomed["camera"]["y"] == pytest.approx(50 / dragged["scale"], rel=0.05)
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate("regard.drawn().camera.x") > dragged["x"]
    page.keyboard.press("+")
    assert page.evaluate("regard.drawn().camera.scale") == pytest.approx(dragged["scale"] * 1.5)
    page.keyboard.press("]")
    assert page.evaluate("regard.state.get().head") == 1
    page.wait_for_function("() => location.hash.includes('scale')")
    here, link = page.evaluate("regard.drawn().camera"), page.url
    page.goto("about:blank")
    page.goto(link)  # and a link brings it back
    assert drawn(page)["camera"] == pytest.approx(here, rel=1e-5)
    page.keyboard.press("Home")
    assert page.evaluate("regard.drawn().camera") == pytest.approx(before)


@pytest.mark.parametrize("which", [1, 2])
def test_a_head_fills_a_wide_window(page: Page, own: tuple[Server, str, str], minilm: Seen, which: int) -> None:
    """A square head, of many weights or few, has most of a window that is wider than high."""
    page.set_viewport_size({"width": 1440, "height": 900})
    look(page, own[0], READY, view="map", trace=own[which])
    box = page.locator(".map-column .drawing").first.bounding_box()
    assert box is not None
    length = LONG if which == 1 else minilm[0].shape[-1]
    first, last = (one["pixel"] for one in cells(page, [(0, 0), (length - 1, length - 1)]))
    assert last[0] - first[0] > 0.7 * box["width"]
    assert last[1] - first[1] > 0.65 * box["height"]


def test_two_heads_and_two_models_in_step(page: Page, own: tuple[Server, str, str], long: Seen, minilm: Seen) -> None:
    server, trace, other = own
    look(page, server, READY, view="map", trace=other, head=2)
    page.get_by_label("Compare").check()
    drawn(page, f"drawn.cell(4, 4, 1)?.value !== undefined && {READY}")
    for at, head in ((0, 2), (1, 3)):
        expected = float(weights_of(minilm, 0, head).tile(4, 7))
        assert cells(page, [(4, 7)], at)[0]["value"] == pytest.approx(expected, abs=1e-6)
    page.keyboard.press("+")
    settle(page)
    first, second = (cells(page, [(4, 7)], at)[0]["pixel"] for at in (0, 1))
    assert first == second
    page.get_by_label("Trace").last.select_option(trace)
    drawn(page, f"drawn.cell(4, 4, 1)?.value !== undefined && {READY}")
    expected = float(weights_of(long, 0, 0).tile(7, 4))
    assert cells(page, [(7, 4)], 1)[0]["value"] == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_words_instead_of_tokens(page: Page, own: tuple[Server, str, str], pieces: Seen) -> None:
    look(page, own[0], view="lookup")
    trace = page.evaluate(
        "async () => (await (await fetch('/api/traces')).json()).find((one) => one.title === 'pieces').id"
    )
    look(page, own[0], READY, view="map", trace=trace, level="word", head=1)
    table = page.evaluate("regard.table()")
    words = [cell.split(" ", 1)[1] for cell in table[1][1:]]
    assert words == ["[CLS]", "uncomfortable", "cats", "sat", "unminded", ".", "[SEP]"]
    groups = [[0], [1, 2, 3], [4], [5], [6, 7], [8], [9]]
    dense = weights_of(pieces, 0, 1).dense()
    to = torch.stack([dense[:, group].sum(1) for group in groups], 1)
    expected = torch.stack([to[group].mean(0) for group in groups])
    drawing = torch.tensor([row[1:] for row in table[2:]])
    torch.testing.assert_close(drawing, expected, atol=1e-6, rtol=1e-5)


def test_export(page: Page, own: tuple[Server, str, str], long: Seen) -> None:
    server, trace, _ = own
    look(page, server, READY, view="map", trace=trace, map={"x": 300, "y": 310, "scale": 30})
    table = page.evaluate("regard.table()")
    assert table[0] == ["Attention · head 0, weights"]
    row, column = int(table[2][0].split()[0]), int(table[1][1].split()[0])
    expected = weights_of(long, 0, 0).tile(slice(row, row + 5), slice(column, column + 5))
    drawing = torch.tensor([line[1:6] for line in table[2:7]])
    torch.testing.assert_close(drawing, expected.float(), atol=1e-7, rtol=1e-4)
    svg = page.evaluate("regard.picture()")
    assert "<image" in svg
    assert f">w{row + 3}<" in svg


def test_another_trace_is_compared_by_the_same_text(page: Page) -> None:
    """The second trace's tokens are those of the text that is looked at, or of its last."""
    from regard.viewer.library import Library
    from regard.viewer.server import serving
    from regard.viewer.trace_view import TraceView

    traces = []
    for name, batch in (("a", 3), ("b", 2)):
        seen = seen_of({}, length=4, heads=1, batch=batch)
        seen.tokens = [[f"{name}{entry}{at}" for at in range(4)] for entry in range(batch)]
        traces.append(TraceView.of(seen, name))
    with serving(Library(traces)) as server:
        for entry in (1, 2):
            other = {"trace": traces[1].id, "head": 0}
            look(page, server, view="map", trace=traces[0].id, entry=entry, map={"other": other})
            drawn(page, f"drawn.cell(1, 1, 1)?.value !== undefined && {READY}")
            table = page.evaluate("regard.table()")
            assert table[1][1] == f"0 a{entry}0"
            assert table[7][1] == "0 b10"


def test_a_word_is_found(page: Page, server: Server, library: Library) -> None:
    """Enter goes from one occurrence to the next."""
    trace = on_model_worker(
        server, lambda: library.read("shakespeare-transformer", "to be or not to be", generate=0)
    ).id
    look(page, server, "drawn.pending === 0", view="map", trace=trace, call="2", head=1)
    finder = page.get_by_label("Find a word")
    for place in (3, 16, 3):  # the letters b, and from the start again
        finder.fill("b")
        finder.press("Enter")
        assert drawn(page, "drawn.cross")["cross"] == {"row": place, "column": place}
