"""The site: no dead link, no page that nothing leads to, no other host, small, and readable by everybody.

A quick site is built here: the pages, and the viewer with one trace. `make site-test` checks the whole one, every
page at three widths, light and dark.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools import site_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytest.importorskip("mkdocs", reason="needs the extra `docs`")
pytest.importorskip("mkdocstrings_handlers.python", reason="needs the extra `docs`")
site_build = pytest.importorskip("tools.site_build", reason="needs the extra `export`")

ROOT = Path(__file__).parents[2]
WHOLE = os.environ.get("REGARD_SITE")  # a built site to check, all of it
SAMPLE = ["", "tour/", "reference/attend/", "live/"]
WIDTHS = {"phone": 390, "tablet": 1024, "desktop": 1440}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if WHOLE:
        return Path(WHOLE)
    if not (site_build.site_viewer.RUNTIME / site_build.site_viewer.SCRIPT).is_file():
        pytest.skip("onnxruntime-web is not installed: npm ci --ignore-scripts")
    out = tmp_path_factory.mktemp("site") / "site"
    site_build.build(Path(os.path.relpath(out)), quick=True)  # `make site` gives a relative path too
    return out


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_nothing_is_wrong_with_the_files(site: Path) -> None:
    """Links, orphans, hosts and sizes; of the whole site the cards too."""
    assert site_check.problems(site, cards=bool(WHOLE)) == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import regard

    index = (site / "reference" / "index.html").read_text("utf-8")
    shown = set(re.findall(r"<code>(\w+)</code>", index))
    assert set(regard.__all__) <= shown
    assert {"translate", "EncoderDecoder", "Tokenizer", "Recipe", "export_onnx", "rollout"} <= shown


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("index.html", '<a href="tour/nowhere/">x</a>', "is not there"),
        ("index.html", '<a href="tour/#no-such-part">x</a>', "no such part"),
        ("alone/index.html", "<p>x</p>", "nothing leads to"),
        ("index.html", '<script src="https://cdn.example.com/x.js"></script>', "fetches"),
        ("assets/site.css", "@import 'https://fonts.example.com/x.css';", "names"),
        ("live/viewer.js", 'fetch("https://example.com/x");', "names"),
    ],
)
def test_the_checks_find_what_is_wrong(site: Path, tmp_path: Path, file: str, text: str, complaint: str) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy, ignore=shutil.ignore_patterns("*.onnx", "*.bin"))
    path = copy / file
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text("utf-8") if path.exists() else "") + text, encoding="utf-8")
    assert any(complaint in problem for problem in site_check.problems(copy, cards=False))


def all_pages() -> list[str]:
    if not WHOLE:
        return SAMPLE
    return sorted(
        path.parent.relative_to(WHOLE).as_posix().removeprefix(".") + "/" for path in Path(WHOLE).rglob("index.html")
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"] if WHOLE else ["dark"])
def test_pages_open_without_a_complaint(browser: Browser, address: str, width: str, scheme: Any) -> None:
    """No error, no other host, no sideways scrolling, nothing that axe finds."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    context = browser.new_context(viewport={"width": WIDTHS[width], "height": 844}, color_scheme=scheme)
    context.add_init_script("try { localStorage.setItem('regard-tour', 'done') } catch {}")
    complaints: list[str] = []
    for name in all_pages():
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                complaints.append(asked.url) if not asked.url.startswith((address, "data:", "blob:")) else None
            ),
        )
        page.goto(address + name.lstrip("/"))
        page.wait_for_load_state("networkidle")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 1, f"{name} is {wide} px wider than a {width}"
        report = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        assert [f"{x['id']}: {x['nodes'][0]['html'][:120]}" for x in report] == [], name
        page.close()
    context.close()
    assert complaints == []


def test_the_readme_leads_to_the_site() -> None:
    """The address in README.md is the one that the site is built for, and the loop is there and small."""
    text = (ROOT / "README.md").read_text("utf-8")
    assert site_build.site_pages.ADDRESS in text or os.environ.get("SITE_URL")
    loop = re.search(r"\]\((docs/loop\.webp)\)", text.split("##")[0])
    assert loop
    assert (ROOT / loop[1]).stat().st_size <= 3_000_000


def test_cards_of_a_site_at_a_relative_path(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make site` names the folder as build/site."""
    del browser  # skips this test where there is none; the cards are drawn by another one, in a thread of its own
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text(site_build.social_card.tags("A title", "", "front"), "utf-8")
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(site_build.social_card.write, Path("site")).result()
    card = tmp_path / "site" / "assets" / "cards" / "front.png"
    assert card.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in card.parent.iterdir()] == ["front.png"]
