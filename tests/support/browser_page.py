"""Opening the page at a state, and reading what a view drew."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from regard.viewer.server import Server

T = TypeVar("T")


def on_model_worker(server: Server, function: Callable[[], T]) -> T:
    """What a function returns that runs a model, between the requests of a page.

    A page may ask for runs of the same model at any moment. A watch records calls from threads without a watch of their
    own too, so a run beside such a request would have both calls.
    """
    result: T = server.app.state.jobs.models.submit(function).result()
    return result


def link(server: Server, **state: Any) -> str:
    """The address of a view: its state, as JSON, after #."""
    return f"{server.url}#{'&'.join(f'{key}={quote(json.dumps(value))}' for key, value in state.items())}"


def look(page: Page, server: Server, until: str = "true", **state: Any) -> Any:
    """Open a view and give what it drew, once `until`, JavaScript over `drawn`, is true."""
    page.goto("about:blank")  # another part after # alone would not load the page anew
    page.goto(link(server, **state))
    return drawn(page, until)


def drawn(page: Page, until: str = "true") -> Any:
    """What the view that is open drew, once `until` is true."""
    page.wait_for_function(f"() => {{ const drawn = window.regard?.drawn(); return drawn && ({until}); }}")
    return page.evaluate("regard.drawn()")


def open_view(page: Page, name: str) -> None:
    """Choose a view from the menus of the four groups."""
    item = page.locator("nav .menu button", has_text=re.compile(rf"^{re.escape(name)}"))
    item.locator("xpath=ancestor::*[contains(@class, 'holder')]/button").click()
    item.click()


def settings(page: Page) -> None:
    """Unfold what is behind the button Settings."""
    page.get_by_role("button", name="Settings").click()


def settle(page: Page) -> None:
    """Wait for two frames: what was asked for is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
