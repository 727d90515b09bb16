"""The Heads view: the links it draws are the library's weights, whatever is hovered, pinned, muted or filtered."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from regard import attend, causal, watch
from regard.seeing.align import word_weights
from regard.seeing.habit import habit
from regard.viewer.trace_view import STATE, TokenLabels, TraceView, first_trace
from tests.support.browser_page import drawn, look, on_model_worker, settings, settle
from tests.support.heads_page import CALL, HALF, READY, same, weights

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from regard.seeing import Seen
    from regard.viewer.library import Library
    from regard.viewer.server import Server


def put(page: Page, side: str, at: int) -> tuple[float, float]:
    """Where a token stands, in pixels of the page."""
    box = page.locator(".pane canvas").last.bounding_box()
    assert box is not None
    width = box["width"]
    left, right = (
        (0.24 * width, 0.62 * width) if width < 520 else (min(280, 0.28 * width), width - min(280, 0.28 * width))
    )
    across = left - 12 if side == "query" else right + 12  # where its label stands: the squares are beyond
    return box["x"] + across, box["y"] + 12 + (at + 0.5) * page.evaluate("regard.drawn().row")


def hover(page: Page, side: str, at: int) -> None:
    page.mouse.move(*put(page, side, at))
    settle(page)


def test_every_link_that_can_be_seen(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    drawing = look(page, server, READY, view="heads", trace=trace, call=str(CALL), lines="all")
    w = weights(minilm)
    same(drawing["links"], w)
    assert len(drawing["lines"]) == len(drawing["links"])
    visible = w[:, drawing["rows"]] / 12 ** (1 / 3) > 0.0301
    assert len(drawing["links"]) >= int(visible.sum())
    assert max(link["alpha"] for link in drawing["links"]) <= 1
    words = page.locator("aside p").nth(1).inner_text()  # what it says of itself
    assert words.startswith(f"{len(drawing['links']):,} links drawn")


@pytest.mark.parametrize("pins", [None, ["q4"], ["k4"]])
def test_seven_lines_that_are_least_a_habit(
    page: Page, server: Server, minilm: Seen, trace: str, pins: list[str] | None
) -> None:
    """Ranked by what is left of a weight without its head's habit, which stands beside it in words and in the table."""
    state = {"view": "heads", "trace": trace, "call": str(CALL), "mute": ["special"], "pins": pins}
    drawing = look(page, server, "drawn.lines.length === 7 && drawn.lines[0].habit !== null", **state)
    w = weights(minilm).double()
    habits = habit(minilm[CALL].weights[0])
    for line in drawing["lines"]:
        place = line["head"], line["query"], line["key"]
        assert line["habit"] == pytest.approx(float(habits[place]), abs=2e-4)
    surplus = w - habits
    surplus[:, [0, -1]] = surplus[..., [0, -1]] = 0
    if pins:
        chosen = torch.zeros_like(surplus)
        at = (slice(None), 4) if pins == ["q4"] else (slice(None), slice(None), 4)
        chosen[at] = surplus[at]
        surplus = chosen
    best = surplus.flatten().sort(descending=True).values[:7].tolist()
    assert [line["weight"] - line["habit"] for line in drawing["lines"]] == pytest.approx(best, abs=5e-4)
    assert "from any word here" in page.locator(".said").inner_text()
    heading, *rows = page.evaluate("regard.table()")
    assert heading[-2:] == ["weight", "from any word here"]
    assert all(row[-1] == pytest.approx(float(habits[row[1], row[2], row[4]]), abs=2e-4) for row in rows)


def test_a_head_with_a_favourite_word_is_said_to_have_one(page: Page, server: Server, library: Library) -> None:
    shown = first_trace()
    library.add(shown)
    look(page, server, "drawn.lines[0]?.habit != null", view="heads", trace=shown.id, **STATE)
    said = page.locator(".said").inner_text()
    assert "Head 5.11 looks at “cat” from every word (0.69; from any word here 0.61); not because of “it”." in said
    # Its square and its line answer when they are pointed at.
    canvas = page.locator(".pane canvas").last.bounding_box()
    assert canvas is not None
    x, y, width, height = page.evaluate("regard.drawn().mark('box', 3, 6)")
    page.mouse.move(canvas["x"] + x + width / 2, canvas["y"] + y + height / 2)
    page.locator(".said", has_text="Head 5.3 looks").filter(has_text="0.34").wait_for()
    assert drawn(page)["focus"] == [{"side": "query", "at": 8}]  # the picture stays
    left, y0, right, y1 = page.evaluate("regard.drawn().mark('line', 9, 10)")
    page.mouse.move(canvas["x"] + (left + right) / 2, canvas["y"] + (y0 + y1) / 2)
    page.locator(".said", has_text="Head 5.9 looks").filter(has_text="0.27").wait_for()


def test_hovering_either_side(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    look(page, server, READY, view="heads", trace=trace, call=str(CALL))
    w = weights(minilm)
    hover(page, "query", 3)
    links = drawn(page, "drawn.focus.length === 1")["links"]
    same(links, w)
    assert {link["query"] for link in links} == {3}
    assert len(links) == int((w[:, 3] >= 1 / 255).sum())
    first = page.locator("aside .barrow").first
    best = int(w[:, 3].mean(0).argmax())
    assert first.get_attribute("data-at") == str(best)
    assert float(first.locator(".value").inner_text()) == pytest.approx(float(w[:, 3, best].mean()), abs=0.006)
    most = [float(w[:, 3, best].max()), int(w[:, 3, best].argmax())]
    named = first.locator(".most").inner_text().removeprefix("most by head ").split()
    assert [float(named[1]), int(named[0])] == pytest.approx(most, abs=0.006)  # beside the mean, and not in its place
    hover(page, "key", 5)
    links = drawn(page, "drawn.focus[0]?.side === 'key' && drawn.links.length")["links"]
    same(links, w)
    assert {link["key"] for link in links} == {5}
    assert len(links) == int((w[:, :, 5] >= 1 / 255).sum())
    page.mouse.move(5, 5)
    drawn(page, "drawn.focus.length === 0")


def test_pins_stay_in_the_link(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    look(page, server, READY, view="heads", trace=trace, call=str(CALL))
    page.mouse.click(*put(page, "query", 2))
    page.keyboard.down("Shift")
    page.mouse.click(*put(page, "query", 5))
    page.keyboard.up("Shift")
    page.mouse.move(5, 5)
    drawing = drawn(page, "drawn.focus.length === 4")
    assert {link["query"] for link in drawing["links"]} == {2, 3, 4, 5}
    w = weights(minilm)[:, 2:6].mean((0, 1))
    assert page.locator("aside .barrow").first.get_attribute("data-at") == str(int(w.argmax()))
    page.wait_for_function("() => location.hash.includes('pins=')")
    page.reload()
    again = drawn(page, f"drawn.links.length === {len(drawing['links'])}")
    for now in (drawing, again):
        del now["strongest"]  # of all layers, which take longer
    assert again == drawing
    page.keyboard.press("Escape")
    drawn(page, "drawn.focus.length === 0")


def test_heads_turned_on_and_off(page: Page, server: Server, trace: str) -> None:
    look(page, server, READY, view="heads", trace=trace, call=str(CALL))
    settings(page)
    square = page.get_by_role("button", name="Head 4", exact=True)
    square.click()
    assert 4 not in drawn(page, "drawn.active.length === 11")["active"]
    square.click()
    drawn(page, "drawn.active.length === 12")
    square.dblclick()
    assert {link["head"] for link in drawn(page, "drawn.active.length === 1")["links"]} == {4}
    square.dblclick()
    drawn(page, "drawn.active.length === 12")
    square.dblclick()
    drawn(page, "drawn.active.length === 1")
    page.get_by_role("button", name="All heads").click()
    drawn(page, "drawn.active.length === 12")
    assert not page.get_by_role("button", name="All heads").is_visible()


def test_muting_shows_the_rest(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    drawing = look(
        page, server, READY, view="heads", trace=trace, call=str(CALL), mute=["first", "special"], pins=["q4"]
    )
    w = weights(minilm)
    last = w.shape[-1] - 1  # [SEP]
    same(drawing["links"], w)
    assert not {0, last} & {link["key"] for link in drawing["links"]}
    for link in drawing["links"]:  # what is drawn is the weight, as the words and the table have it
        assert link["alpha"] == pytest.approx(float(w[link["head"], 4, link["key"]]), rel=HALF)
    hidden = float(page.locator("aside [data-hidden]").get_attribute("data-hidden") or 0)
    assert hidden == pytest.approx(float(w[:, 4, [0, last]].sum(-1).mean()), rel=3 * HALF)
    assert "[CLS], [SEP], which are hidden" in page.locator("aside [data-hidden]").inner_text()
    page.keyboard.press("Escape")  # no lines leave the hidden tokens either
    links = drawn(page, "drawn.focus.length === 0 && drawn.links.length")["links"]
    assert not {0, last} & {link["query"] for link in links}
    page.evaluate("regard.state.set({ pins: ['k4'] })")
    links = drawn(page, "drawn.focus.length === 1 && drawn.links.length")["links"]
    assert not {0, last} & {link["query"] for link in links}


def test_the_strongest_heads_of_all_layers(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    look(page, server, f"{READY} && drawn.strongest.length", view="heads", trace=trace, mute=["special"], pins=["q8"])
    every = torch.stack([weights(minilm, at) - habit(call.weights[0]) for at, call in enumerate(minilm)])
    layers = every[:, :, 8].clone()  # [layers, heads, keys]: what is left of the weights without habits
    layers[..., [0, -1]] = 0
    best = layers.amax(-1).flatten().sort(descending=True)
    listed = drawn(page)["strongest"]
    assert [12 * int(one["call"]) + one["head"] for one in listed] == best.indices[:5].tolist()
    assert [one["surplus"] for one in listed] == pytest.approx(best.values[:5].tolist(), abs=HALF)
    rows = page.locator(".strongest .barrow")
    assert rows.count() == 5
    page.set_viewport_size({"width": 1024, "height": 768})  # no value is cut off
    assert (
        page.evaluate("(() => { const a = document.querySelector('aside'); return a.scrollWidth - a.clientWidth })()")
        <= 0
    )
    rows.nth(1).click()
    drawing = drawn(page, f"drawn.call === '{listed[1]['call']}' && drawn.links.length")
    assert drawing["active"] == [listed[1]["head"]]
    # The word goes along to the other views.
    assert page.evaluate("regard.state.get().pins") == ["q8"]
    page.evaluate("regard.state.set({ view: 'neuron' })")
    assert drawn(page, "drawn.query !== undefined")["query"] == 8
    page.evaluate("regard.state.set({ view: 'map' })")
    assert drawn(page, "drawn.pending === 0")["chosen"] == 8
    page.evaluate("regard.state.set({ view: 'heads' })")
    drawn(page, READY)
    # A column: who looks at this word.
    page.evaluate("regard.state.set({ pins: ['k8'], heads: null })")
    listed = drawn(page, "drawn.focus[0].side === 'key' && drawn.strongest.length")["strongest"]
    columns = every[..., 8].clone()
    columns[..., [0, -1]] = 0
    assert listed[0]["surplus"] == pytest.approx(float(columns.max()), abs=HALF)


def test_a_click_chooses_one_word_and_a_swipe_none(browser: Browser, server: Server, trace: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    context.add_init_script("localStorage.setItem('regard-tour', 'done')")
    page = context.new_page()
    look(page, server, READY, view="heads", trace=trace)
    box = page.locator(".drawing.scrolling").bounding_box()
    assert box is not None
    assert box["y"] < 0.25 * 844  # the controls are folded away
    assert not page.get_by_role("button", name="Head 4", exact=True).is_visible()
    for at in (3, 5):  # the second tap replaces the first
        page.touchscreen.tap(*put(page, "query", at))
        assert drawn(page, "drawn.focus.length")["focus"] == [{"side": "query", "at": at}]
    assert "looks" in page.locator(".said").inner_text()  # in sight, also where the words are below
    page.get_by_role("button", name="Clear").click()
    drawn(page, "drawn.focus.length === 0")
    x, y = put(page, "query", 5)
    finger = context.new_cdp_session(page)
    finger.send("Input.synthesizeScrollGesture", {"x": x, "y": y, "yDistance": -120, "gestureSourceType": "touch"})
    settle(page)
    assert drawn(page)["focus"] == []
    assert page.evaluate("regard.state.get().pins") is None
    context.close()


def test_loading_says_so(page: Page, server: Server, trace: str) -> None:
    look(page, server, READY, view="heads", trace=trace, call="0", pins=["q3"])
    held: list[Any] = []
    page.route("**/calls/3/weights*", lambda route: held.append(route))
    page.evaluate("regard.state.set({ call: '3' })")
    page.locator("aside").get_by_text("Reading layer 3 …").wait_for()
    assert "No link" not in page.locator("aside").inner_text()
    page.unroute("**/calls/3/weights*")
    for route in held:
        route.continue_()
    drawn(page, READY)


def test_words(page: Page, server: Server, library: Library) -> None:
    shown = on_model_worker(
        server, lambda: library.read("minilm", "Nothing unremarkable happened; the grasshoppers philosophized.")
    )
    assert shown.text is not None
    w, words = word_weights(weights(shown.seen), shown.text)
    assert len(words) < len(shown.text.tokens) - 3
    until = f"{READY} && drawn.level === 'word'"
    drawing = look(page, server, until, view="heads", trace=shown.id, call=str(CALL), level="word", pins=["q2"])
    same(drawing["links"], w)
    assert len(drawing["links"]) == int((w[:, 2] >= 1 / 255).sum())
    hover(page, "key", 2)
    links = drawn(page, "drawn.focus[0]?.side === 'key' && drawn.links.length")["links"]
    same(links, w)
    assert len(links) == int((w[:, :, 2] >= 1 / 255).sum())


def test_by_keyboard(page: Page, server: Server, trace: str) -> None:
    look(page, server, READY, view="heads", trace=trace)
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert drawn(page, "drawn.focus.length")["focus"] == [{"side": "query", "at": 2}]
    page.keyboard.press("ArrowRight")
    assert drawn(page)["focus"] == [{"side": "key", "at": 2}]
    page.keyboard.press("Enter")
    page.keyboard.press("]")
    assert drawn(page, "drawn.call === '1'")["focus"] == [{"side": "key", "at": 2}]
    page.keyboard.press(".")
    assert drawn(page, "drawn.active.length === 1")["active"] == [0]
    page.keyboard.press("w")
    drawn(page, "drawn.level === 'word'")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.querySelector('[aria-live]').textContent.includes('looked at most by')")


def test_the_line_is_there(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    """Pixels: head 0.2 looks at the previous token, and its line is in its colour, as strong as its weight says."""
    look(page, server, READY, view="heads", trace=trace, call="0", heads=[2], pins=["q6"])
    weight = float(minilm[0].head(2).dense()[6, 5])
    assert weight > 0.8
    read = """([row, key]) => {
        const canvas = [...document.querySelectorAll(".pane canvas")].at(-1);
        const scale = canvas.width / canvas.clientWidth;
        const top = Math.round((12 + ((row + key) / 2 + 0.5) * regard.drawn().row - 3) * scale);
        const { data } = canvas.getContext("2d").getImageData(canvas.width / 2, top, 1, Math.round(6 * scale));
        let best = 0;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > data[best + 3]) best = i;
        const color = getComputedStyle(document.querySelectorAll("button.head")[2]).backgroundColor;
        return [[...data.slice(best, best + 4)], color.match(/\\d+/g).map(Number)];
    }"""
    (*pixel, alpha), color = page.evaluate(read, [6, 5])
    assert pixel == pytest.approx(color, abs=6)
    assert 0.7 * weight < alpha / 255  # a sloping line is a little paler at its edges


def test_exports(page: Page, server: Server, minilm: Seen, trace: str) -> None:
    drawing = look(page, server, READY, view="heads", trace=trace, call=str(CALL), pins=["q3"], heads=[0, 7])
    files = {}
    for kind, item in (("SVG", "Picture as SVG"), ("PNG", "Picture as PNG"), ("CSV", "Numbers as CSV")):
        page.get_by_role("button", name="Share").click()
        with page.expect_download() as waiting:
            page.get_by_role("menuitem", name=item).click()
        assert waiting.value.suggested_filename == f"regard-minilm-layer{CALL}-head0-7-heads.{kind.lower()}"
        files[kind] = waiting.value.path().read_bytes()
    rows = list(csv.reader(io.StringIO(files["CSV"].decode())))
    assert rows[0][:3] == ["layer", "head", "query"]
    assert len(rows) == 1 + len(drawing["links"])
    for row in rows[1:]:  # all digits of float32
        assert float(row[-2]) == pytest.approx(float(weights(minilm)[int(row[1]), 3, int(row[4])]), rel=2e-6)
    assert {row[6] for row in rows[1:]} == {""}
    svg = files["SVG"].decode()
    assert svg.count("<path") >= 2
    assert ">because</text>" in svg
    assert files["PNG"].startswith(b"\x89PNG")
    # What is hidden is in the table and says so; the figure says it too, on white also where the page is dark.
    page.evaluate("regard.state.set({ mute: ['special'], heads: null, lines: 'all' })")
    page.emulate_media(color_scheme="dark")
    table = page.evaluate("regard.table()")
    last = len(minilm.text.tokens) - 1  # type: ignore[union-attr]
    assert {row[4] for row in table[1:] if row[6] == "hidden"} == {0, last}
    figure = page.evaluate("regard.figure()")
    assert 'fill="#ffffff"' in figure.split("<text")[0]
    assert "[CLS], [SEP] hidden" in figure
    assert page.evaluate("document.getElementById('regard').dataset.theme") == "dark"
    apart = """async () => {
        const svg = new DOMParser().parseFromString(await regard.figure(), "image/svg+xml").documentElement;
        document.body.append(svg);
        const labels = [...svg.querySelectorAll("text")].filter((node) => /^head \\d+$/.test(node.textContent));
        const boxes = labels.map((node) => node.getBoundingClientRect());
        const squares = labels.map((node) => node.previousElementSibling.getBoundingClientRect());
        svg.remove();
        return boxes.map((box, at) => [box.left - squares[at].right, (squares[at + 1]?.left ?? 1e9) - box.right,
            squares[at + 1]?.top !== squares[at].top]);
    }"""
    entries = page.evaluate(apart)
    assert len(entries) == 12
    assert all(before >= 4 and (after >= 4 or wrapped) for before, after, wrapped in entries), entries


def test_a_hostile_token_is_text(page: Page, server: Server, library: Library, minilm: Seen) -> None:
    assert minilm.text is not None
    bad = "<img src=x onerror=document.title='bad'>"
    tokens = [bad if at == 3 else token for at, token in enumerate(minilm.text.tokens)]
    shown = replace(TraceView.of(minilm, bad), sides={"text": [TokenLabels.of(tokens)]})
    library.add(shown)
    look(page, server, READY, view="heads", trace=shown.id, pins=["q3"])
    assert bad in page.locator("aside h2").inner_text()
    assert "bad" not in page.title()
    assert page.evaluate("(async () => new DOMParser().parseFromString(await regard.picture(), 'image/svg+xml'))()")
    assert page.evaluate("regard.picture().then((svg) => !svg.includes('<img'))")
    page.wait_for_timeout(50)
    assert page.locator("img").count() == 0


class Attends(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = attend(q, k, k, mask=causal())
        return out


def test_long_texts(page: Page, server: Server, library: Library) -> None:
    """Of 3,000 keys the strongest of each query in view are fetched, and no matrix."""
    torch.manual_seed(0)
    q = 2 * torch.randn(1, 2, 3000, 8)
    with torch.no_grad(), watch(model := Attends()) as seen:
        model(q, q + torch.randn_like(q))
    seen.tokens = [[f"t{at}" for at in range(3000)]]
    shown = TraceView.of(seen, "long")
    library.add(shown)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    drawing = look(page, server, f"{READY} && drawn.rows[0] >= 1999", view="heads", trace=shown.id, at=2000)
    w = torch.stack([seen[0].head(head).rows(slice(1900, 2100)).dense() for head in range(2)])
    for link in drawing["links"]:
        link["query"] -= 1900
    same(drawing["links"], w)
    rows = torch.tensor(drawing["rows"]) - 1900
    assert len(drawing["links"]) == int((w[:, rows] / 2 ** (1 / 3) >= 0.03).sum())
    best = int(w[0, 110].argmax())
    page.evaluate("(best) => regard.state.set({ shift: best - 2010, pins: [`k${best}`] })", best)
    to = drawn(page, "drawn.focus.length === 1")["links"]
    assert {link["key"] for link in to} == {best}
    assert (0, 2010) in {(link["head"], link["query"]) for link in to}
    assert not [url for url in asked if "/weights?" in url]
    page.mouse.move(5, 5)
    assert "of the queries in view" in page.locator("aside p.quietly").first.inner_text()


def test_pins_are_tokens_also_between_words(page: Page, server: Server, library: Library) -> None:
    shown = on_model_worker(server, lambda: library.read("minilm", "Unremarkable grasshoppers philosophized."))
    assert shown.text is not None
    tokens = shown.text.tokens
    last = max(at for at, token in enumerate(tokens) if token.startswith("##"))  # the end of the third word
    look(page, server, READY, view="heads", trace=shown.id, pins=[f"q{last}", f"k{len(tokens) - 1}"])
    page.keyboard.press("w")
    words = drawn(page, "drawn.level === 'word' && drawn.links.length")
    assert words["focus"] == [{"side": "query", "at": 3}, {"side": "key", "at": 5}]
    page.keyboard.down("Control")
    page.mouse.click(*put(page, "query", 1))
    page.keyboard.up("Control")
    page.mouse.move(5, 5)
    page.keyboard.press("w")
    drawing = drawn(page, "drawn.level === 'token' && drawn.links.length")
    first = [at for at in range(1, len(tokens)) if tokens[at].startswith("##") or at == 1]
    pieces = [at for at in first if all(x in first for x in range(1, at))]  # of the first word
    assert len(pieces) > 1
    assert {pin["at"] for pin in drawing["focus"] if pin["side"] == "query"} >= {last, *pieces}
    assert {"side": "key", "at": len(tokens) - 1} in drawing["focus"]


@pytest.mark.parametrize("state", [{"heads": 5}, {"pins": 5}, {"mute": 1}, {"pins": [5, "q1", "x", "k99999"]}])
def test_links_that_say_something_else(page: Page, server: Server, trace: str, state: dict[str, Any]) -> None:
    drawing = look(page, server, READY, view="heads", trace=trace, **state)
    assert drawing["active"] == list(range(12))
    assert drawing["focus"] == ([{"side": "query", "at": 1}] if isinstance(state.get("pins"), list) else [])


def test_weights_stand_beside_their_token(page: Page, server: Server, trace: str) -> None:
    """No square of a weight lies under a label: on the page, in the export, and on a phone."""
    overlaps = """async () => {
        const svg = new DOMParser().parseFromString(await regard.picture(), "image/svg+xml");
        document.body.append(svg.documentElement);
        const drawn = document.body.lastElementChild;
        const boxes = (kind) => [...drawn.querySelectorAll(kind)].map((node) => node.getBoundingClientRect());
        const labels = boxes("text").filter((box) => box.height > 12);
        const squares = boxes("rect[fill^=rgb]").filter((box) => box.height > 4);
        drawn.remove();
        const hit = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        return [squares.length, squares.filter((square) => labels.some((label) => hit(square, label))).length];
    }"""
    for width, pins in ((1280, ["q3"]), (1280, ["k3"]), (390, ["q3"])):
        page.set_viewport_size({"width": width, "height": 800})
        look(page, server, READY, view="heads", trace=trace, call="2", pins=pins)
        squares, hidden = page.evaluate(overlaps)
        assert squares > 20
        assert hidden == 0, (width, pins)


def test_the_text_fills_the_window(page: Page, server: Server, trace: str) -> None:
    """A short text is drawn as large as the window allows; of a long one rows have their usual height."""
    page.set_viewport_size({"width": 1280, "height": 900})
    tall = look(page, server, READY, view="heads", trace=trace)["row"]
    page.set_viewport_size({"width": 1280, "height": 500})
    settle(page)
    assert drawn(page, READY)["row"] == 22 < tall
