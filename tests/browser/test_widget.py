"""The widget in a page, as a notebook shows it: its own module, and messages to and from the kernel."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from regard.seeing import Seen
    from regard.viewer.server import Server

# What anywidget gives a widget's module: `model`, which carries messages, and `el` to draw into.
SHOW = """async ({ esm, css, saved = null }) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const listeners = new Set();
  const model = {
    get: () => saved,
    on: (name, listener) => listeners.add(listener),
    off: (name, listener) => listeners.delete(listener),
    send: async (message) => {
      const reply = await window.kernel(message);
      if (!reply) return;
      const buffers = reply.buffers.map((x) => new DataView(Uint8Array.from(atob(x), (c) => c.charCodeAt(0)).buffer));
      for (const listener of listeners) listener(reply.message, buffers);
    },
  };
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const el = document.createElement("div");
  document.body.append(el);
  window.end = await module.default.render({ model, el });
  window.heard = () => listeners.size;
}"""


class Kernel:
    """The Python side: what the widget sends is the answer to what the page asked."""

    def __init__(self, seen: Seen) -> None:
        self.widget = seen.show()
        self.widget.send = self.hear  # type: ignore[method-assign]
        self.said: dict[str, dict[str, Any]] = {}
        self.new = threading.Condition()

    def hear(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        packed = [base64.b64encode(x).decode() for x in buffers]
        with self.new:
            self.said[message["id"]] = {"message": message, "buffers": packed}
            self.new.notify_all()

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        self.widget._receive(None, message, [])
        if message["method"] == "CANCEL":
            return None
        with self.new:
            assert self.new.wait_for(lambda: message["id"] in self.said, 20)
        return self.said.pop(message["id"])


def test_the_widget_draws_and_ends(page: Page, minilm: Seen) -> None:
    kernel = Kernel(minilm)
    page.goto("about:blank")
    page.expose_function("kernel", kernel.answer)
    page.evaluate(SHOW, {"esm": kernel.widget._esm, "css": kernel.widget._css})
    page.wait_for_function("() => window.regard?.drawn()")
    page.evaluate("regard.state.set({ view: 'map', call: '0', head: 0 })")
    page.wait_for_function("() => { const drawn = regard.drawn(); return drawn?.cell?.(2, 3)?.value != null; }")
    cell = page.evaluate("regard.drawn().cell(2, 3)")
    assert cell["value"] == pytest.approx(minilm[0].head(0).dense()[2, 3].item(), abs=1e-6)
    page.evaluate("window.end()")
    assert page.evaluate("window.heard()") == 0  # nothing of it is left
    assert page.locator(".regard-widget *").count() == 0
    kernel.widget.close()
    assert not kernel.widget._thread.is_alive()


def test_a_saved_notebook_shows_its_data_without_a_kernel(page: Page, minilm: Seen) -> None:
    widget = minilm.show()
    page.goto("about:blank")
    page.expose_function("kernel", lambda _: None)  # it is gone: nothing is answered
    page.evaluate(SHOW, {"esm": widget._esm, "css": widget._css, "saved": widget.saved})
    page.wait_for_function("() => window.regard?.drawn()?.links?.length")
    page.evaluate("regard.state.set({ view: 'map', call: '0', head: 0 })")
    page.wait_for_function("() => { const drawn = regard.drawn(); return drawn?.cell?.(2, 3)?.value != null; }")
    cell = page.evaluate("regard.drawn().cell(2, 3)")
    assert cell["value"] == pytest.approx(minilm[0].head(0).dense()[2, 3].item(), rel=1e-3, abs=1e-6)  # float16
    widget.close()


def test_two_views_of_one_widget_keep_apart(page: Page, server: Server) -> None:
    page.goto(server.url)
    paths = page.evaluate("""async () => {
        const { WidgetSource } = await import("/static/data/sources.js");
        const [listeners, sent] = [new Set(), []];
        const model = {
            on: (_, hear) => listeners.add(hear),
            off: (_, hear) => listeners.delete(hear),
            send: (message) => sent.push(message),
        };
        const [a, b] = [new WidgetSource(model), new WidgetSource(model)];
        const answers = Promise.all([a.get("/api/a"), b.get("/api/b")]);
        for (const { id, path } of [...sent].reverse()) for (const hear of listeners) hear({ id, json: path }, []);
        return answers;
    }""")
    assert paths == ["/api/a", "/api/b"]
