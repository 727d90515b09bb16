"""The Generation view: each token written has the row in which it was written, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard import watch
from regard.viewer.trace_view import TraceView
from tests.support.browser_page import drawn, look

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from regard.viewer.library import Library
    from regard.viewer.server import Server

READY = "drawn.weights"

SETTINGS = True  # unfolded


@pytest.fixture(scope="module")
def written(library: Library) -> TraceView:
    """A small language model of random weights: a prompt of six tokens, and eight that it wrote."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad(), watch(model) as seen:
        ids = model.generate(torch.arange(1, 7)[None], max_new_tokens=8, do_sample=False, pad_token_id=0)
    seen.tokens = [[f"w{id}" for id in ids[0, :-1].tolist()]]
    shown = TraceView.of(seen, "written")
    shown.pinned = True
    library.add(shown)
    return shown


def test_what_each_token_looked_at(page: Page, server: Server, written: TraceView) -> None:
    drawing = look(page, server, READY, view="generation", trace=written.id, call="1", step=3)
    call = written.seen[1]
    assert call.steps[0] == 6
    assert "token 4 of" in page.inner_text(".now")
    assert "(row 8 of the weights)" in page.inner_text(".now")
    # Token 9 is the fourth that was written, from the row of the token before it.
    assert [one["row"] for one in drawing["written"]] == list(range(5, 5 + len(drawing["written"])))
    w = torch.stack([call.head(head).dense()[8] for head in range(2)]).mean(0)
    torch.testing.assert_close(torch.tensor(drawing["weights"]), w, rtol=1e-3, atol=1e-5)
    shaded = [bool(color) for color in drawing["colors"]]
    assert shaded == (w / w.max()).sqrt().gt(0.02).tolist()
    page.keyboard.press("ArrowRight")
    later = drawn(page, "drawn.step === 4 && drawn.weights")
    torch.testing.assert_close(torch.tensor(later["weights"]), _mean(written, 9), rtol=1e-3, atol=1e-5)
    page.get_by_role("button", name="Head 1", exact=True).click()
    alone = drawn(page, "drawn.active.length === 1 && drawn.weights")
    torch.testing.assert_close(torch.tensor(alone["weights"]), call.head(0).dense()[9], rtol=1e-3, atol=1e-5)
    page.keyboard.press("m")
    muted = drawn(page, "drawn.weights[0] === 0")["weights"]
    assert muted[1:] == pytest.approx(alone["weights"][1:])
    best = page.locator("aside .barrow").first
    assert best.get_attribute("data-at") == str(1 + int(torch.tensor(muted[1:]).argmax()))
    on_prompt = float(call.head(0).dense()[9, :6].sum())
    assert f"{100 * on_prompt:.0f} %" in page.locator("aside p").inner_text()


def _mean(shown: TraceView, row: int) -> torch.Tensor:
    return torch.stack([shown.seen[1].head(head).dense()[row] for head in range(2)]).mean(0)


def test_playing_and_the_scrubber(page: Page, server: Server, written: TraceView) -> None:
    look(page, server, READY, view="generation", trace=written.id)
    page.get_by_role("button", name="Play").click()
    drawn(page, "drawn.step === 1")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("slider", name="Token written").fill("2")
    assert drawn(page, "drawn.step === 2 && drawn.weights")["step"] == 2
    page.get_by_role("group", name="What it wrote").get_by_role("button").first.click()
    drawn(page, "drawn.step === 0")
    svg = page.evaluate("regard.picture()")
    assert "looked at</text>" in svg


def test_a_translator_writes_what_its_rows_are_named(page: Page, server: Server, library: Library) -> None:
    trace = next(one for one in library.traces.values() if one.seen.model == "tatoeba-bahdanau-en-fr")
    drawing = look(page, server, READY, view="generation", trace=trace.id, step=1)
    assert drawing["written"][1]["row"] == 1
    w = trace.seen[0].head(0).dense()[1]
    torch.testing.assert_close(torch.tensor(drawing["weights"]), w, rtol=1e-3, atol=1e-5)


def test_nothing_was_written(page: Page, server: Server, library: Library) -> None:
    drawing = look(page, server, view="generation", trace=next(iter(library.traces)))
    assert drawing == {"written": []}
    assert "in one pass" in page.locator(".empty").inner_text()


def test_the_prompts_share_of_a_long_text(page: Page, server: Server, library: Library) -> None:
    """More keys than are fetched: the strongest of them are counted, and that is said."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=2200)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad(), watch(model) as seen:
        model.generate(torch.arange(2100)[None] % 40, max_new_tokens=3, do_sample=False, pad_token_id=0)
    shown = TraceView.of(seen, "a long prompt")
    library.add(shown)
    look(page, server, READY, view="generation", trace=shown.id, step=1)
    best = torch.stack([seen[0].head(head).dense()[2100].topk(128).values.sum() for head in range(2)]).mean()
    assert 100 * best < 90
    words = page.locator("aside p").inner_text()
    assert words.startswith("At least ")
    assert 0 <= 100 * best - int(words.split()[2]) < 2
    assert "128 strongest" in words


def test_a_link_that_says_something_else(page: Page, server: Server, written: TraceView) -> None:
    drawing = look(page, server, READY, view="generation", trace=written.id, heads=5, mute=1)
    assert drawing["active"] == [0, 1]
    assert drawing["weights"][0] > 0
