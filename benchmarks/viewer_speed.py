"""python -m benchmarks.viewer_speed: the viewer in a real browser, and its tiles over HTTP.

A server in a process of its own holds three traces: MiniLM over 512 tokens (6 layers of 12 heads), and queries and
keys of one layer over 16,384 and over 131,072 tokens (64 wide). Chromium opens the page; frames are counted while the
pointer moves over Heads and while Map is dragged. Nothing else should run on the machine; the load it had is printed.
With --keep the figures go into speeds.csv and docs/performance.md.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import torch

from benchmarks.timing import Row, row, write
from tools import performance_page as performance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from regard.viewer.trace_view import TraceView

LONG, LONGEST = 16_384, 131_072
TILE = 256


def serve() -> None:
    """Run the server of the benchmark: print its address and the ids of its traces, then answer requests."""
    from regard.seeing.analysis import TokenizedText
    from regard.seeing.text_models import load_text_model
    from regard.viewer.library import Library
    from regard.viewer.server import Server
    from regard.viewer.trace_view import TraceView

    minilm = load_text_model("minilm")
    ids = torch.randint(1000, 30000, (512,), generator=torch.Generator().manual_seed(0))
    text = TokenizedText.from_ids(ids, minilm.tokenizer.convert_ids_to_tokens(ids.tolist()))
    traces = [TraceView.of(minilm.read(text), "MiniLM"), random_trace(LONG), random_trace(LONGEST)]
    server = Server(Library(traces), token=False)
    print(server.address, *(trace.id for trace in traces), flush=True)
    server.run()


def random_trace(tokens: int) -> TraceView:
    """One layer of two heads over random queries and keys, 64 wide; 64 rows of its output are kept for fidelity."""
    from regard.attention import attend
    from regard.attention.energies import DotForm
    from regard.attention.energy_matrix import EnergyMatrix
    from regard.seeing import Seen
    from regard.seeing.call import Call
    from regard.viewer.trace_view import TraceView

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, tokens, 64) for _ in range(3))
    rows = torch.linspace(0, tokens - 1, 64).long()
    seen = Seen(f"{tokens} tokens")
    energies = EnergyMatrix(q, k, DotForm(64**-0.5), (1, 2))
    out = attend(q[..., rows, :], k, v)
    seen.calls.append(Call(out, energies=energies, v=v, name="layer.0", origin="made up", cross=False, rows=rows))
    return TraceView.of(seen, f"{tokens} tokens")


class Api:
    """One connection, kept open, as a browser keeps its own."""

    def __init__(self, address: str) -> None:
        self.connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=600)

    def get(self, path: str) -> tuple[int, Any, bytes]:
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def timed(self, path: str) -> float:
        start = time.perf_counter()
        status, _, body = self.get(path)
        assert status == 200, body[:200]
        return (time.perf_counter() - start) * 1e3


def tiles(trace: str, tokens: int, level: int, count: int) -> Iterator[str]:
    """Tiles of one level, spread over the matrix."""
    reach = TILE << level
    across = max(1, tokens // reach)
    for at in range(count):
        top, left = (at * 5 % across) * reach, (at * 7 + at // across) % across * reach
        bottom, right = min(top + reach, tokens), min(left + reach, tokens)
        place = f"top={top}&left={left}&bottom={bottom}&right={right}"
        size = f"height={-(-(bottom - top) >> level)}&width={-(-(right - left) >> level)}"
        yield f"/api/traces/{trace}/calls/0/tile?head=0&entry=0&pool=max&{place}&{size}"


def over_http(api: Api, trace: str, tokens: int) -> list[Row]:
    whole = next(tiles(trace, tokens, (tokens // TILE).bit_length() - 1, 1))
    start = time.perf_counter()
    first = None
    while True:  # the pass over the whole head, given as far as it is computed
        status, _, _ = api.get(whole)
        first = first or time.perf_counter() - start
        if status == 200:
            break
    found = [
        row(f"viewer, the whole of a {tokens:,}² head, first look", "regard: a part of it", [first], "s"),
        row(
            f"viewer, the whole of a {tokens:,}² head, first look",
            "regard: all of it",
            [time.perf_counter() - start],
            "s",
        ),
    ]
    fresh, again = [], []
    for level in range((tokens // TILE).bit_length()):
        paths = list(dict.fromkeys(tiles(trace, tokens, level, 12)))
        took = [api.timed(path) for path in paths if path != whole]
        again += [api.timed(path) for path in paths]
        fresh += took
        if took:
            print(f"  {tokens:,}: cells of {1 << level:4}: {statistics.median(took):7.1f} ms, at most {max(took):.1f}")
    work = f"viewer, a tile of a {tokens:,}² head, {TILE}² cells, round trip"
    return [*found, row(work, "regard: computed", fresh), row(work, "regard: asked for again", again)]


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def link(address: str, **state: Any) -> str:
    return f"{address}/#{'&'.join(f'{key}={quote(json.dumps(value))}' for key, value in state.items())}"


def opened(page: Page, url: str) -> tuple[float, float, float]:
    """Milliseconds to the first paint and until the view is drawn, megabytes that came."""
    page.goto("about:blank")
    start = time.perf_counter()
    page.goto(url)
    page.wait_for_function("() => window.regard?.drawn()")
    drawn = (time.perf_counter() - start) * 1e3
    page.wait_for_timeout(1500)  # what is still on its way
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    came = page.evaluate("performance.getEntriesByType('resource').reduce((sum, x) => sum + x.transferSize, 0)")
    return paint, drawn, came / 1e6


def frames(page: Page, moves: list[tuple[float, float]], drag: bool) -> list[float]:
    """Milliseconds between frames while the pointer goes from place to place."""
    box = page.locator("#regard-view canvas").first.bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in moves]
    page.mouse.move(*places[0])
    if drag:
        page.mouse.down()
    page.evaluate("regard.frames(180).then((times) => { window.times = times })")
    while not page.evaluate("window.times ? 1 : 0"):
        for place in places:
            page.mouse.move(*place)
    if drag:
        page.mouse.up()
    found: list[float] = page.evaluate("window.times")
    page.evaluate("delete window.times")
    return found


def memory() -> float:
    """Megabytes of the largest process that draws pages, shared parts counted by share."""
    found = [0.0]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (process / "cmdline").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()
                found.append(next(int(x.split()[1]) for x in lines if x.startswith("Pss:")) / 1024)
        except (OSError, StopIteration):
            continue
    return max(found)


def in_browser(address: str, minilm: str, longest: str) -> list[Row]:
    from playwright.sync_api import sync_playwright

    wave = [(0.1 + 0.8 * (at % 40) / 40, 0.2 + 0.6 * ((at * 3) % 40) / 40) for at in range(40)]
    across = [(0.3 + 0.4 * (at % 30) / 30, 0.3 + 0.4 * (at % 30) / 30) for at in range(60)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.add_init_script("localStorage.setItem('regard-toured', '1')")
        page.goto(address)  # once, so that the browser itself has begun
        paints, drawn, came = zip(
            *(opened(page, link(address, view="heads", trace=minilm)) for _ in range(5)), strict=True
        )
        hovering = frames(page, wave, drag=False)
        heads = memory()
        opened(page, link(address, view="map", trace=longest))
        panning = frames(page, across, drag=True)
        maps = memory()
        browser.close()
    name = "viewer, MiniLM over 512 tokens, Heads"
    return [
        row(f"{name}, opened", "regard: first paint", list(paints)),
        row(f"{name}, opened", "regard: drawn", list(drawn)),
        row(f"{name}, came over the wire", "regard", list(came), "MB"),
        row(f"{name}, between frames while the pointer moves", "regard", hovering),
        row(f"{name}, memory of the page", "regard", [heads], "MB"),
        row(f"viewer, Map of {LONGEST:,}², between frames while it is dragged", "regard", panning),
        row(f"viewer, Map of {LONGEST:,}², memory of the page", "regard", [maps], "MB"),
    ]


def main() -> None:
    if "--serve" in sys.argv:  # the server process that this benchmark starts
        serve()
        return
    command = [sys.executable, "-m", "benchmarks.viewer_speed", "--serve"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address, minilm, long, longest = server.stdout.readline().split()
        print(f"load of the machine before: {os.getloadavg()[0]:.2f}")
        api = Api(address)
        found = [*over_http(api, long, LONG), *over_http(api, longest, LONGEST), *in_browser(address, minilm, longest)]
        print(f"load of the machine after: {os.getloadavg()[0]:.2f}")
    finally:
        server.terminate()
        server.wait()
    for one in found:
        print(f"{one.work:75} {one.by:25} {one.p20:9.2f} {one.p50:9.2f} {one.p80:9.2f} {one.unit}")
    if "--keep" in sys.argv:
        write(found)
        performance.PAGE.write_text(performance.page(), encoding="utf-8")


if __name__ == "__main__":
    main()
