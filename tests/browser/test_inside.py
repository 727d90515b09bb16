"""Inside one layer, and experiments: what is pointed at lights up, and a silenced head is seen in the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.viewer.library import Library, installed_models
from tests.support.browser_page import drawn, look, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from regard.viewer.server import Server


SHAKESPEARE = "shakespeare-transformer"


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    from regard.viewer.server import serving

    library = Library(models=[x for x in installed_models() if x.layers])
    library.read("shakespeare-transformer", "My lord, the", generate=8).pinned = True
    with serving(library) as server:
        yield server


def test_a_cell_lights_its_row_and_its_column(page: Page, small: Server) -> None:
    page.set_default_timeout(60_000)  # a model is loaded first
    drawing = look(page, small, "drawn.boxes.length", view="inside", inside={"text": "My lord", "model": SHAKESPEARE})
    step = drawing["steps"].index("Q Kᵀ")
    page.evaluate(
        "(step) => regard.state.set({ inside: { text: 'My lord', model: 'shakespeare-transformer', step } })", step
    )
    drawing = drawn(page, "drawn.step === 'Q Kᵀ' && drawn.boxes.length === 3")
    result = next(box for box in drawing["boxes"] if box["role"] == "result")
    canvas = page.locator(".drawing canvas").bounding_box()
    assert canvas is not None
    width, height = result["cell"]
    page.mouse.move(canvas["x"] + result["x"] + 2.5 * width, canvas["y"] + result["y"] + 4.5 * height)
    settle(page)
    drawing = drawn(page, "drawn.hover")
    assert drawing["hover"] == {"name": "QKᵀ", "row": 4, "column": 2}
    assert drawing["lit"] == {"Kᵀ": {"column": 2}, "Q turned": {"row": 4}, "QKᵀ": {"row": 4, "column": 2}}
    value = drawing["matrices"]["QKᵀ"][4][2]
    said = float(drawing["reading"].split(" = ")[1].split(":")[0].replace("−", "-"))
    assert said == pytest.approx(value, rel=1e-3, abs=1e-4)
    # Its own arithmetic: the largest of its products.
    left, right = drawing["matrices"]["Q turned"][4], [row[2] for row in drawing["matrices"]["Kᵀ"]]
    most = max((abs(x * y), x, y) for x, y in zip(left, right, strict=True))
    first = drawing["reading"].split("products, ")[1].split(" + ")[0].replace("−", "-").split(" · ")
    assert [float(x) for x in first] == pytest.approx(list(most[1:]), rel=1e-3, abs=1e-4)
    page.keyboard.press("ArrowRight")
    assert drawn(page, "drawn.step === '÷ √d'")
    page.get_by_label("Layer").select_option("3")
    drawn(page, "drawn.boxes.length")
    assert page.evaluate("regard.state.get().inside.layer") == 3


def test_it_opens_on_queries_and_keys_of_words(page: Page, small: Server) -> None:
    drawing = look(page, small, "drawn.boxes.length === 3", view="inside")
    assert drawing["step"] == "Q Kᵀ"
    assert page.get_by_role("textbox", name="Text").input_value() == "My sister has a small black dog."


def test_large_type_for_a_lecture_hall(page: Page, small: Server) -> None:
    """Pointing still hits what is drawn."""
    look(page, small, "drawn.links.length", view="heads")
    page.keyboard.press("b")
    settle(page)
    canvas = page.locator(".pane canvas").last.bounding_box()
    row = drawn(page)["row"] * 1.5
    assert canvas is not None
    page.mouse.move(canvas["x"] + 30, canvas["y"] + 12 * 1.5 + 3.5 * row)
    assert drawn(page, "drawn.focus.length")["focus"] == [{"side": "query", "at": 3}]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_silenced_head_and_the_next_token(page: Page, small: Server) -> None:
    page.set_default_timeout(60_000)  # a model is loaded first
    look(page, small, "drawn.links.length", view="heads", call="1", heads=[2])
    panel = page.get_by_role("region", name="What if")
    panel.get_by_role("button", name="is silenced").click()
    panel.get_by_text("Predicted before").wait_for()
    assert panel.locator(".changes li").count() == 5
    panel.get_by_role("button", name="Look at this run").click()
    page.get_by_label("Trace").locator("option:checked", has_text="without head 2").wait_for(state="attached")
    first = page.evaluate("async () => (await (await fetch('/api/traces')).json())[0].id")
    look(page, small, "drawn.written.length", view="generation", trace=first, step=2)
    rows = page.get_by_role("region", name="Next token").locator(".barrow")
    rows.first.wait_for()
    before = rows.locator(".value").first.inner_text()
    page.get_by_label("Temperature").fill("2")
    page.wait_for_function(
        "(before) => document.querySelector('.next-token .value').textContent !== before", arg=before
    )
    assert float(rows.locator(".value").first.inner_text()) < float(before)
