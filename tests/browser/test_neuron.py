"""The Neuron view: q, k, their product, its sum and the weight are the model's own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from regard import Additive, attend, causal, watch
from regard.attention.energies import TanhForm
from regard.viewer.trace_view import TraceView
from tests.support.browser_page import drawn, look

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from regard.seeing import Seen
    from regard.viewer.library import Library
    from regard.viewer.server import Server

READY = "drawn.rows.length && drawn.q"
SAID = "(words) => document.querySelector('[aria-live]').textContent.includes(words)"

SETTINGS = True  # unfolded


def test_how_a_weight_comes_about(page: Page, server: Server, library: Library, minilm: Seen) -> None:
    trace = next(iter(library.traces))
    page.set_viewport_size({"width": 1280, "height": 850})  # all keys are just in sight
    drawing = look(page, server, READY, view="neuron", trace=trace, call="2", head=9, query=4)
    scores = minilm[2].weights.flat()
    q, k = scores.a[9, 4], scores.b[9]
    torch.testing.assert_close(torch.tensor(drawing["q"]), q, rtol=1e-5, atol=1e-6)
    assert [row["key"] for row in drawing["rows"]] == list(range(minilm[2].shape[-1]))
    for name, expected in (
        ("k", k),
        ("product", q * k / 32**0.5),
        ("energy", (q * k).sum(-1) / 32**0.5),
        ("weight", minilm[2].head(9).dense()[4]),
    ):
        given = torch.tensor([row[name] for row in drawing["rows"]])
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
    assert "energy = 0.177" in page.locator(".note").inner_text()

    # Another query by a click on its token, another head by a key.
    box = page.locator(".pane canvas").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 60, box["y"] + 78 + 6.5 * 24)
    assert drawn(page, f"{READY} && drawn.query === 6")["query"] == 6
    page.keyboard.press("ArrowDown")
    drawn(page, f"{READY} && drawn.query === 7")
    page.keyboard.press(".")
    later = drawn(page, f"{READY} && drawn.head === 10")
    torch.testing.assert_close(torch.tensor(later["q"]), scores.a[10, 7], rtol=1e-5, atol=1e-6)

    # Hovering a number reads it.
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 78 + 3.5 * 24)
    page.wait_for_function("() => document.querySelector('.footer').textContent.includes('product')")
    assert page.locator(".footer").inner_text().startswith("because → sat: number ")
    assert page.evaluate("regard.picture()").count("<rect") > 32 * 2 * 10
    assert len(page.evaluate("regard.table()")[1]) == 4 + 2 * 32


class Listens(nn.Module):
    """Additive attention, as Bahdanau's, over eight places."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = Additive(6, 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = attend(x, x, x, energy=self.energy, mask=causal())
        return out


def test_additive_energies_have_terms_too(page: Page, server: Server, library: Library) -> None:
    torch.manual_seed(0)
    with torch.no_grad(), watch(model := Listens()) as seen:
        model(torch.randn(1, 2, 8, 6))
    shown = TraceView.of(seen, "additive")
    library.add(shown)
    drawing = look(page, server, READY, view="neuron", trace=shown.id, head=1, query=2)
    scores = seen[0].weights.flat()
    q, k = scores.a[1, 2], scores.b[1]
    assert isinstance(scores.form, TanhForm)
    terms = scores.form.weight * torch.tanh(q + k)
    given = torch.tensor([row["product"] for row in drawing["rows"]])
    torch.testing.assert_close(given, terms, rtol=1e-4, atol=1e-6)
    energies = [row["energy"] for row in drawing["rows"]]
    assert energies[3:] == [None] * 5  # the mask closes what comes later
    torch.testing.assert_close(torch.tensor(energies[:3]), terms.sum(-1)[:3], rtol=1e-4, atol=1e-6)
    weights = torch.tensor([row["weight"] for row in drawing["rows"]])
    torch.testing.assert_close(weights, seen[0].head(1).dense()[2], rtol=1e-4, atol=1e-6)
    assert "tanh" in page.locator(".note").inner_text()


def test_by_keyboard(page: Page, server: Server, library: Library, minilm: Seen) -> None:
    trace = next(iter(library.traces))
    look(page, server, READY, view="neuron", trace=trace, call="2", head=9, query=4)
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    weight = minilm[2].head(9).dense()[4, 1]
    scores = minilm[2].weights.flat()
    terms = scores.a[9, 4] * scores.b[9, 1] / 32**0.5
    page.wait_for_function(SAID, arg=f"on → the: energy {terms.sum():.3f}; weight {weight:.3f}")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_function(SAID, arg=f", product {terms[1]:.3f}; energy {terms.sum():.3f}")
    assert page.locator(".footer").inner_text().startswith("on → the: number 1: q ")


def test_loop_attention_shows_its_terms(page: Page, server: Server, library: Library) -> None:
    trace = next(one for one in library.traces.values() if one.seen.model == "tatoeba-bahdanau-en-fr")
    look(page, server, READY, view="neuron", trace=trace.id)
    assert "tanh" in page.locator(".note").inner_text()
