"""The README's moving picture, docs/loop.webp: six seconds of the viewer, dark. `python -m tools.readme_loop [FOLDER]`.

It opens as `regard view` does. One word after another is chosen, then all heads are shown at once, then a
translation, and the pointer goes back to the tab it began at. The frames are real: the page is driven through Chromium,
and a pointer is drawn where the mouse is. With FOLDER, the frames are also written there as PNG files, to be looked at
one by one.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from regard.viewer.library import Library

PATH = Path(__file__).parent.parent / "docs" / "loop.webp"
LARGEST = 3_000_000
"""Bytes of the file."""
SIZE = {"width": 1120, "height": 800}
WIDTH = 1120
"""Pixels of the picture across."""
RATE = 10
"""Frames a second."""
SECONDS = 6
POINTER = """
const pointer = document.createElement("div");
pointer.id = "pointer";
pointer.innerHTML = '<svg width="26" height="30"><path d="M2 2 L2 23 L8 18 L12 27 L16 25 L12 17 L20 17 Z" ' +
  'fill="white" stroke="black" stroke-width="1.5"/></svg>';
pointer.style.cssText = "position:fixed;z-index:99;pointer-events:none;left:-40px;top:-40px";
document.body.append(pointer);
addEventListener("mousemove", (event) => {
  pointer.style.left = `${event.clientX}px`;
  pointer.style.top = `${event.clientY}px`;
}, true);
"""


class Recorder:
    """Takes frames while the mouse moves."""

    def __init__(self, page: Page, place: tuple[float, float]) -> None:
        self.page, self.place = page, place
        self.frames: list[bytes] = []
        page.mouse.move(*place)

    def hold(self, seconds: float) -> None:
        for _ in range(round(seconds * RATE)):
            self.frames.append(self.page.screenshot())

    def move(self, x: float, y: float, seconds: float = 0.3) -> None:
        """Along a line, slower at both ends."""
        (x0, y0), steps = self.place, max(1, round(seconds * RATE))
        for step in range(1, steps + 1):
            t = step / steps
            t = t * t * (3 - 2 * t)
            self.page.mouse.move(x0 + (x - x0) * t, y0 + (y - y0) * t)
            self.page.wait_for_timeout(160)
            self.frames.append(self.page.screenshot())
        self.place = (x, y)

    def press(self, place: Locator, seconds: float = 0.3) -> None:
        """Move to the middle of what stands there and click."""
        self.move(*_middle(place), seconds)
        self.click()

    def click(self) -> None:
        self.page.mouse.down()
        self.page.mouse.up()
        self.page.wait_for_timeout(200)


def record(library: Library) -> list[bytes]:
    from playwright.sync_api import sync_playwright

    from regard.viewer.server import serving

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright, serving(library) as server:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport=SIZE, color_scheme="dark", reduced_motion="reduce")
        context.add_init_script("try { localStorage.setItem('regard-tour', 'done') } catch {}")
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_function("() => regard.drawn()?.links.length")
        page.evaluate(POINTER)
        read, write = (page.locator("nav .holder > button", has_text=name) for name in ("Read", "Write"))
        tokens = next(iter(next(iter(library.traces.values())).sides.values()))[0].tokens
        recorder = Recorder(page, _middle(read))
        page.wait_for_timeout(500)
        recorder.hold(0.5)
        for word in ("cat", "tired"):
            recorder.move(*_token(page, tokens, word), 0.4)
            recorder.click()  # it is shown alone, instead of the word before
            recorder.hold(0.6)
        recorder.press(read, 0.4)
        recorder.press(page.locator("nav [data-name=model]"), 0.4)
        page.wait_for_function("() => regard.drawn()?.thumbs")
        page.wait_for_timeout(800)
        recorder.hold(0.4)
        recorder.press(page.locator(".thumb").nth(14))
        page.wait_for_timeout(600)
        recorder.hold(0.6)
        recorder.press(write)
        recorder.press(page.locator("nav [data-name=translate]"))
        page.wait_for_function("() => regard.drawn()?.length", timeout=120_000)
        page.wait_for_timeout(800)
        recorder.hold(0.3)
        words = page.locator(".sentence.target .word")
        for at in (1, 5):
            recorder.move(*_middle(words.nth(at)), 0.2)
            recorder.hold(0.4)
        recorder.move(*_middle(read), 0.2)
        browser.close()
    return recorder.frames


def _middle(place: Locator) -> tuple[float, float]:
    box = place.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _token(page: Page, tokens: list[str], word: str) -> tuple[float, float]:
    """Where a word stands in the left column of the Heads view."""
    at = tokens.index(word)
    box = page.locator(".pane canvas").last.bounding_box()
    assert box is not None
    return box["x"] + 110, box["y"] + 12 + (at + 0.5) * page.evaluate("regard.drawn().row")


def save(frames: list[bytes], path: Path) -> None:
    """As an animation of `SECONDS`, at the best quality that fits."""
    from PIL import Image

    images = []
    for frame in frames:
        with Image.open(io.BytesIO(frame)) as image:
            size = WIDTH, round(WIDTH * image.height / image.width)
            images.append(image.convert("RGB").resize(size, Image.Resampling.LANCZOS))
    duration = round(1000 * SECONDS / len(images))
    for quality in (88, 80, 70, 60, 50, 40):
        packed = io.BytesIO()
        animation: dict[str, Any] = {"save_all": True, "append_images": images[1:], "duration": duration, "loop": 0}
        images[0].save(packed, "WEBP", quality=quality, method=4, **animation)
        if packed.tell() <= LARGEST:
            break
    path.write_bytes(packed.getvalue())
    print(f"{path}: {len(images)} frames, {duration} ms each, quality {quality}, {packed.tell():,} bytes")


def main() -> None:
    from regard.viewer.library import Library, installed_models
    from regard.viewer.trace_view import STATE, first_trace

    library = Library([first_trace()], [model for model in installed_models() if model.task in ("translate", "read")])
    library.opening = STATE
    frames = record(library)
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        for at, frame in enumerate(frames):
            (folder / f"{at:03}.png").write_bytes(frame)
    save(frames, PATH)


if __name__ == "__main__":
    main()
