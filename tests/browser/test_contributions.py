"""Contributions on the page: the library's numbers, the answer that is chosen, the proof, the table of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.viewer.answer_contributions import Target, contribution_run, trace_answers
from regard.viewer.library import Library, installed_models
from regard.viewer.server import serving
from regard.viewer.trace_view import TraceView
from tests.support.browser_page import drawn, look, on_model_worker
from tests.support.viewer_client import seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from regard.viewer.answer_contributions import ContributionRun
    from regard.viewer.server import Server

SETTINGS = True  # unfolded


@pytest.fixture(scope="module")
def writers() -> Library:
    """A language model of regard that wrote four letters, and a trace without a model."""
    library = Library(models=[x for x in installed_models() if x.ours])
    library.read("shakespeare-transformer", "The king is", generate=4).pinned = True
    library.add(TraceView.of(seen_of(batch=1), "without a model"))
    return library


@pytest.fixture(scope="module")
def live(writers: Library) -> Iterator[Server]:
    with serving(writers) as server:
        yield server


def _trace(library: Library) -> TraceView:
    return next(trace for trace in library.traces.values() if trace.made is not None)


def _run(server: Server, library: Library, position: int = -1, target: Target | None = None) -> ContributionRun:
    """What the library computes for the trace."""
    trace = _trace(library)
    return on_model_worker(server, lambda: contribution_run(trace, trace_answers(library, trace, position), target))


def test_heads_switch_to_contributions_and_compare_two_answers(page: Page, live: Server, writers: Library) -> None:
    trace = _trace(writers)
    look(page, live, "drawn.links.length", view="heads", trace=trace.id, call="3", pins=["q8"])
    page.get_by_role("button", name="Contributes to …").click()
    found = drawn(page, "drawn.toward && drawn.links.length")
    toward = found["toward"]
    assert toward["answer"] == toward["answers"][0]["id"]
    run = _run(live, writers)
    dense = run.calls[3].contributions.dense()
    assert {link["query"] for link in found["links"]} == {8}
    for link in found["links"]:
        assert link["weight"] == pytest.approx(float(dense[link["head"], 8, link["key"]]), abs=1e-5)
    assert any(link["weight"] < 0 for link in found["links"])
    badge = page.locator(".answer-choice .badge")
    assert "Contributions add up · error" in badge.inner_text()
    other = toward["answers"][2]["id"]
    page.get_by_label("rather than").select_option(str(other))
    found = drawn(page, f"drawn.toward?.minus === {other} && drawn.links.length")
    run = _run(live, writers, target=Target(toward["position"], toward["answer"], other))
    assert found["toward"]["value"] == pytest.approx(run.value, abs=1e-4)
    page.get_by_role("button", name="Looks at").click()
    assert all(link["weight"] > 0 for link in drawn(page, "!drawn.toward && drawn.links.length")["links"])


def test_map_and_generation_show_the_same_numbers(page: Page, live: Server, writers: Library) -> None:
    trace = _trace(writers)
    look(page, live, "drawn.toward && !drawn.pending", view="map", trace=trace.id, call="3", head=1, toward={})
    run = _run(live, writers)
    dense = run.calls[3].contributions.dense()
    values = [page.evaluate(f"regard.drawn().cell({i}, {j}).value") for i, j in ((14, 13), (9, 2), (14, 0))]
    expected = [float(dense[1, i, j]) for i, j in ((14, 13), (9, 2), (14, 0))]
    assert values == pytest.approx(expected, abs=1e-6)
    state = {"view": "generation", "trace": trace.id, "call": "3", "step": 2, "toward": {}}
    found = look(page, live, "drawn.toward && drawn.weights", **state)
    row = found["written"][2]["row"]
    assert found["toward"]["position"] == row
    run = _run(live, writers, row)
    expected_row = run.calls[3].contributions.dense()[:, row].sum(0)
    torch.testing.assert_close(torch.tensor(found["weights"]), expected_row, atol=1e-5, rtol=1e-4)


def test_the_table_of_effects_opens_a_head_on_a_phone(page: Page, live: Server, writers: Library) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    trace = _trace(writers)
    look(page, live, "drawn.links.length", view="heads", trace=trace.id)
    page.keyboard.press("f")
    found = drawn(page, "drawn.heads?.length && !drawn.running")
    measured = [head for head in found["heads"] if head["change"] is not None]
    assert len(found["heads"]) == 20
    assert len(measured) == 12
    run = _run(live, writers)
    for head in found["heads"]:
        assert head["estimate"] == pytest.approx(-run.calls[int(head["call"])].totals[head["head"]], abs=1e-4)
    page.get_by_role("button", name="Silence the other 8 heads").click()
    found = drawn(page, "drawn.heads.every((one) => one.change != null)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    best = found["heads"][0]
    first = page.locator("table.effects tbody tr").first
    sides = "(cell) => { const [bar, track] = ['.effects-bar', '.effects-track'].map((name) => {"
    sides += " const box = cell.querySelector(name).getBoundingClientRect(); return box.x + box.width / 2; });"
    sides += " return Math.sign(bar - track); }"
    drawn_side = first.locator("td").first.evaluate(sides)
    assert drawn_side == (1 if best["change"] > 0 else -1)  # to the right of the zero line where it is positive
    page.locator("table.effects tbody button").first.focus()
    page.keyboard.press("Enter")
    opened = drawn(page, "drawn.links && drawn.toward")
    assert (opened["call"], opened["active"]) == (best["call"], [best["head"]])


def test_what_a_trace_without_its_model_needs(page: Page, live: Server, writers: Library) -> None:
    bare = next(trace for trace in writers.traces.values() if trace.made is None)
    look(page, live, "drawn.links.length", view="heads", trace=bare.id)
    page.get_by_role("button", name="Contributes to …").click()
    assert "regard view MODEL TEXT" in page.locator(".answer-status").inner_text()
