"""Look-up: the playground as a person uses it. Its formulas are compared with regard's in tests/static."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import regard as r
from regard.layers import SinusoidalPositions
from tests.support.browser_page import look

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from regard.viewer.server import Server


@pytest.fixture
def playground(page: Page, server: Server) -> Page:
    page.goto(f"{server.url}#view=lookup")
    page.wait_for_selector(".lookup-table")
    return page


def test_boxes_by_dragging_typing_and_keys(playground: Page) -> None:
    assert playground.evaluate("regard.drawn().z") == [36]
    assert playground.inner_text(".result") == "z = 36"
    plot = playground.locator(".lookup-stage canvas")
    box = plot.bounding_box()
    assert box is not None
    playground.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    playground.mouse.down()
    playground.mouse.move(box["x"] + box["width"] / 2 - 90, box["y"] + 60, steps=4)
    playground.mouse.up()
    query = float(playground.input_value("[aria-label='Query q']"))
    assert 300 < query < 350
    expected = r.lookup(query, {300: 30, 400: 40}, energy=r.InverseDistance())
    assert playground.evaluate("regard.drawn().z[0]") == pytest.approx(expected, abs=1e-9)
    plot.focus()
    playground.keyboard.press("Shift+ArrowRight")
    assert float(playground.input_value("[aria-label='Query q']")) == pytest.approx(query + 14, abs=1)
    playground.fill("[aria-label='Query q']", "325")
    playground.select_option("label:has-text('Energy') select", "Gaussian")
    playground.select_option("label:has-text('Normalizer') select", "Softmax")
    playground.fill("[aria-label='value 2']", "50")
    expected = r.lookup(325, {300: 30, 400: 50}, energy=r.Gaussian(1), normalize=r.Softmax())
    assert playground.evaluate("regard.drawn().z[0]") == pytest.approx(expected, abs=1e-9)


def test_words_points_phones_and_what_cannot_be(playground: Page) -> None:
    playground.get_by_role("button", name="Phone book").click()
    assert playground.inner_text(".result") == "z = 555-5678"
    playground.fill("[aria-label='Query q']", "Dan Brown")
    assert "no key matches" in playground.inner_text(".result")
    playground.select_option("label:has-text('Energy') select", "Dot")
    assert "Dot compares numbers, and the query is not one" in playground.inner_text(".problem")
    playground.get_by_role("button", name="Words", exact=True).click()
    playground.get_by_role("button", name="catches", exact=True).click()
    rows = playground.evaluate("regard.table()")[1:-1]
    x = torch.tensor([[float(number) for number in row[0].split(",")] for row in rows])
    z, w = r.attend(x, x, x, energy=r.Dot(), weights=True)
    assert playground.evaluate("regard.drawn().weights") == pytest.approx(w.dense()[3].tolist(), abs=1e-6)
    assert playground.evaluate("regard.drawn().z") == pytest.approx(z[3].tolist(), abs=1e-6)
    playground.uncheck("[aria-label='see key 4']")
    assert playground.evaluate("regard.drawn().weights[3]") == 0
    assert sum(playground.evaluate("regard.drawn().weights")) == pytest.approx(1)
    playground.get_by_role("button", name="remove entry 1").click()
    assert len(playground.evaluate("regard.drawn().weights")) == 5


def test_the_best_match_has_the_longest_bar(playground: Page) -> None:
    """Energies of distances are below zero, and the largest of them is nearest to it."""
    playground.get_by_role("button", name="Points", exact=True).click()
    weights = playground.evaluate("regard.drawn().weights")
    lengths = [float(x.strip("%")) for x in playground.evaluate(
        "[...document.querySelectorAll('.fill.energy')].map((mark) => mark.style.width)"
    )]  # fmt: skip
    assert len(lengths) == len(weights) > 2
    ranks = [sorted(range(len(x)), key=x.__getitem__) for x in (lengths, weights)]
    assert ranks[0] == ranks[1]


def test_sums_without_a_normalizer(playground: Page) -> None:
    playground.get_by_role("button", name="Sums", exact=True).click()
    assert playground.inner_text(".result") == "z = 7"  # 3 + 4: equal keys add up
    playground.select_option("label:has-text('Normalizer') select", "Proportional")
    assert playground.inner_text(".result") == "z = 3.5"
    playground.get_by_role("button", name="Points", exact=True).click()
    playground.select_option("label:has-text('Energy') select", "Cosine")
    playground.select_option("label:has-text('Normalizer') select", "Unnormalized")
    assert playground.evaluate("regard.drawn().z") == pytest.approx(_called(playground).tolist(), rel=1e-6)


@pytest.mark.parametrize("kind", ["Sinusoidal", "Rotary", "ALiBi"])
def test_positions_are_what_the_call_of_regard_computes(playground: Page, kind: str) -> None:
    playground.get_by_role("button", name="Order", exact=True).click()
    playground.get_by_role("button", name=kind, exact=True).click()
    slider = playground.locator("label:has-text('query at position') input")
    weights = []
    for at in (0, 4):
        slider.fill(str(at))
        drawn = playground.evaluate("regard.drawn()")
        assert drawn["problem"] == ""
        assert drawn["z"] == pytest.approx(_called(playground).tolist(), abs=1e-5)
        weights.append(drawn["weights"])
    assert weights[0][0] != pytest.approx(weights[0][5])  # the two equal words are told apart
    assert weights[0] != pytest.approx(weights[1])


def test_positions_need_vectors_of_an_even_width(playground: Page) -> None:
    playground.get_by_role("button", name="Rotary", exact=True).click()
    assert "Rotary positions need vectors of an even number of components; these have 1" in playground.inner_text(
        ".problem"
    )


ENDS = """() => [...document.querySelectorAll(".feature .figure")].map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return range.getBoundingClientRect().right;
})"""
"""Where the numbers beside the sliders end."""


@pytest.mark.parametrize("width", [1024, 1280, 1440])
def test_the_table_ends_before_the_plot(playground: Page, width: int) -> None:
    playground.set_viewport_size({"width": width, "height": 768})
    for name in ("Boxes", "Points", "Words", "Order"):
        playground.get_by_role("button", name=name, exact=True).click()
        table, plot = (playground.locator(part).bounding_box() for part in (".lookup-table", ".lookup-plot"))
        assert table is not None
        assert plot is not None
        assert table["x"] + table["width"] <= plot["x"] or table["y"] + table["height"] <= plot["y"]
        assert plot["x"] + plot["width"] <= width
        ends = playground.evaluate(ENDS)
        assert max(ends, default=0) <= width, name


def test_it_fits_a_phone(playground: Page) -> None:
    playground.set_viewport_size({"width": 390, "height": 844})
    playground.get_by_role("button", name="Order", exact=True).click()
    # The page is laid out again after both, which takes a moment.
    playground.wait_for_function(
        "() => { const v = document.querySelector('.lookup'); return v.scrollWidth <= v.clientWidth }"
    )


def _called(page: Page) -> torch.Tensor:
    """What regard gives for the call that the page shows, with the numbers of its table."""
    rows = page.evaluate("regard.table()")[1:-1]
    q = torch.tensor(_numbers(page.input_value("[aria-label='Query q']")))
    keys, values = (torch.tensor([_numbers(row[at]) for row in rows]) for at in (0, 3))
    code = page.evaluate("regard.drawn().call").split("      ")[0]
    scope = {name: getattr(r, name) for name in r.__all__}
    encoding = SinusoidalPositions(q.shape[-1] + q.shape[-1] % 2).matrix(64).float()
    z: torch.Tensor = eval(code, {**scope, "torch": torch, "q": q, "K": keys, "V": values, "PE": encoding})
    return z.flatten()


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def test_a_link_restores_it_and_a_bad_one_is_left_alone(page: Page, server: Server) -> None:
    page.goto(f"{server.url}#view=lookup")
    page.get_by_role("button", name="Points").click()
    page.fill("[aria-label='Query q']", "7, 5")
    page.wait_for_function("() => decodeURIComponent(location.hash).includes('7, 5')")
    drawn, link = page.evaluate("regard.drawn()"), page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".lookup-table")
    assert page.evaluate("regard.drawn()") == drawn
    for bad in (
        {"table": "boxes", "rows": 3},
        {"table": "nothing"},
        {**_boxes(), "rows": [{"key": 3, "value": "<b>"}]},
    ):
        assert look(page, server, view="lookup", lookup=bad)["z"] == [36]


def test_export(playground: Page) -> None:
    svg = playground.evaluate("regard.picture()")
    assert svg.startswith("<svg")
    assert "z = 36" in svg
    table = playground.evaluate("regard.table()")
    assert table[1][:2] == ["300", pytest.approx(1 / 60)]
    assert table[-1] == ["z", "", "", "36"]


def _boxes() -> dict[str, object]:
    return {"table": "boxes", "energy": "Dot", "normalize": "Softmax", "query": "1", "rows": []}
