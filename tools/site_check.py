"""Checks of the built site: dead links, pages that nothing leads to, other hosts, sizes, cards.

`python -m tools.site_check FOLDER` prints what is wrong.
"""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from .site_pages import ADDRESS

WHOLE = 60_000_000
"""Bytes of the site."""
FIRST_VIEW = 1_500_000
"""Bytes that the front page, or the viewer, needs before anything can be done with it."""
FETCHED = {
    "script": "src",
    "img": "src",
    "source": "srcset",
    "iframe": "src",
    "audio": "src",
    "video": "src",
    "link": "href",
}
"""Elements that the browser fetches by itself."""
NOT_FETCHED = {"canonical", "prev", "next", "edit"}
NAMESPACES = re.compile(r"https?://(www\.w3\.org|localhost|127\.0\.0\.1)\b")
HOST = "http://site.invalid/"


class References(HTMLParser):
    """The links, the fetched files and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.at_once: list[str] = []
        self.anchors: set[str] = set()
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "meta" and values.get("property") == "og:image":
            self.images.append(values["content"])
        if tag in FETCHED and FETCHED[tag] in values and not NOT_FETCHED & set(values.get("rel", "").split()):
            self.fetched.append(values[FETCHED[tag]])
            if values.get("loading") != "lazy":
                self.at_once.append(values[FETCHED[tag]])


def problems(site: Path, *, cards: bool = True) -> list[str]:
    """What is wrong with a built site, in words."""
    pages = {path.relative_to(site).as_posix(): References(path.read_text("utf-8")) for path in site.rglob("*.html")}
    wrong = [*dead_links(site, pages), *orphans(pages), *other_hosts(site, pages)]
    if cards:
        wrong += [
            f"{name}: there is no card {url}"
            for name, page in pages.items()
            for url in page.images
            if not _card(site, url)
        ]
        wrong += [f"{name} has no card" for name, page in pages.items() if not page.images]
    if size(site) > WHOLE:
        wrong.append(f"the site has {size(site):,} bytes; at most {WHOLE:,}")
    for name in ("index.html", "live/index.html"):
        first = first_view(site, name, pages[name])
        if first > FIRST_VIEW:
            wrong.append(f"{name} needs {first:,} bytes at once; at most {FIRST_VIEW:,}")
    return wrong


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def first_view(site: Path, name: str, page: References) -> int:
    """Bytes of a page and of the files it names, without pictures further down; of the viewer also its first trace."""
    files = {site / name, *(_file(site, name, url) for url in page.at_once if not urlsplit(url).scheme)}
    if name.startswith("live/"):
        data = site / "live" / "data"
        first = json.loads((data / "about.json").read_text("utf-8"))["traces"][0]["id"]
        files |= {data / "about.json", data / "traces" / f"{first}.json"}
    return sum(path.stat().st_size for path in files if path.is_file())


def dead_links(site: Path, pages: dict[str, References]) -> list[str]:
    """Links and files of this site that are not there, and parts of pages that do not exist."""
    wrong = []
    for name, page in pages.items():
        for url in {*page.links, *page.fetched}:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc or url.startswith("//"):
                continue
            path = _file(site, name, url)
            if not path.is_file():
                wrong.append(f"{name} links to {url}, which is not there")
                continue
            target = pages.get(path.relative_to(site.resolve()).as_posix())
            # The part after # of the viewer is its state.
            if parts.fragment and target and "live" not in path.parts and unquote(parts.fragment) not in target.anchors:
                wrong.append(f"{name} links to {url}: that page has no such part")
    return wrong


def orphans(pages: dict[str, References]) -> list[str]:
    """Pages that cannot be reached from the front page."""
    reached, ahead = {"index.html"}, ["index.html"]
    while ahead:
        name = ahead.pop()
        for url in pages[name].links:
            if urlsplit(url).scheme:
                continue
            path = unquote(urlsplit(urljoin(HOST + name, url)).path).lstrip("/")
            target = f"{path}index.html" if not path or path.endswith("/") else path
            if target in pages and target not in reached:
                reached.add(target)
                ahead.append(target)
    return [f"nothing leads to {name}" for name in sorted(set(pages) - reached - {"404.html"})]


def other_hosts(site: Path, pages: dict[str, References]) -> list[str]:
    """Files that a page would fetch from another host, and addresses of other hosts in scripts and style sheets."""
    wrong = [f"{name} fetches {url}" for name, page in pages.items() for url in page.fetched if urlsplit(url).netloc]
    for path in [*site.rglob("*.css"), *site.rglob("*.js"), *site.rglob("*.mjs")]:
        text = path.read_text("utf-8")
        if path.suffix == ".css":
            found = re.findall(r"url\(\s*['\"]?(https?://[^)'\"]+)|@import\s+['\"](https?://[^'\"]+)", text)
            urls = [a or b for a, b in found]
        else:
            urls = re.findall(
                r"(?:fetch|import|importScripts|src\s*=|href\s*=)\s*\(?\s*[`'\"](https?://[^`'\"]+)", text
            )
            urls += re.findall(
                r"https?://(?:unpkg\.com|cdn\.[\w.]+|fonts\.[\w.]+|[\w.]*jsdelivr\.net|polyfill\.io)[^`'\" ]*", text
            )
        wrong += [f"{path.relative_to(site)} names {url}" for url in urls if not NAMESPACES.match(url)]
    return wrong


def _file(site: Path, page: str, url: str) -> Path:
    root = urlsplit(ADDRESS).path  # the page of missing pages names all from the root of its host
    path = unquote(urlsplit(urljoin(HOST + page, "/" + url.removeprefix(root) if url.startswith(root) else url)).path)
    path = path.lstrip("/").removesuffix(".")
    file = site.resolve() / path
    return file / "index.html" if file.is_dir() or not path else file


def _card(site: Path, url: str) -> bool:
    return (site / "assets" / "cards" / Path(urlsplit(url).path).name).is_file()


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    wrong = problems(Path(sys.argv[1]))
    print("\n".join(wrong) or "nothing is wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
