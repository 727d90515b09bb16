"""Social cards: the picture that a link to a page of the site shows, 1200 × 630, drawn by Chromium.

`python -m tools.social_card SITE` writes one for each page of a built site, into assets/cards/.
"""

from __future__ import annotations

import html
import io
import re
import shutil
import sys
from pathlib import Path

from .site_pages import ADDRESS, ROOT

SIZE = {"width": 1200, "height": 630}
SENTENCE = "Type a sentence, point at a word, and see where a model's attention went."
CARD = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; width: 1200px; height: 630px; background: #0d1017; color: #f2f4f8; overflow: hidden;
  position: relative; font-family: system-ui, "DejaVu Sans", sans-serif; }
img { position: absolute; left: 560px; top: 130px; width: 1100px; border-radius: 18px;
  box-shadow: 0 20px 80px #000; }
div { position: absolute; inset: 0; padding: 76px; background: linear-gradient(90deg, #0d1017 44%, #0d101700 68%); }
b { display: block; font-size: 34px; color: #fdba74; letter-spacing: 1px; }
h1 { font-size: 66px; line-height: 1.1; margin: 34px 0 26px; max-width: 560px; overflow-wrap: anywhere; }
p { font-size: 30px; line-height: 1.35; margin: 0; max-width: 500px; color: #c6cddb; }
</style><img src="PICTURE"><div><b>regard</b><h1>TITLE</h1><p>WORDS</p></div>"""


def tags(title: str, path: str, name: str) -> str:
    """The elements of a page's head that name its card."""
    values = {
        "og:type": "website",
        "og:site_name": "regard",
        "og:title": title,
        "og:description": SENTENCE,
        "og:url": ADDRESS + path,
        "og:image": f"{ADDRESS}assets/cards/{name}.png",
    }
    lines = [f'<meta property="{key}" content="{html.escape(value)}">\n' for key, value in values.items()]
    return "".join(lines) + '<meta name="twitter:card" content="summary_large_image">\n'


def write(site: Path) -> None:
    """Draw the card of every page of a built site."""
    from playwright.sync_api import sync_playwright

    titles: dict[str, str] = {}
    for page in sorted(site.rglob("*.html")):
        text = page.read_text("utf-8")
        named = re.search(r'property="og:image" content="[^"]*/([^/"]+)\.png"', text)
        title = re.search(r'property="og:title" content="([^"]*)"', text)
        if named and title:
            titles[named[1]] = html.unescape(title[1])
    out = site.resolve() / "assets" / "cards"  # the browser opens files by their absolute paths
    out.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    picture = (ROOT / "docs" / "viewer" / "heads-dark.png").as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--allow-file-access-from-files"]
        )
        page = browser.new_page(viewport=SIZE)
        template = out / "card.html"
        for name, title in titles.items():
            text = CARD.replace("PICTURE", picture).replace("TITLE", html.escape(title))
            template.write_text(text.replace("WORDS", SENTENCE), encoding="utf-8")
            page.goto(template.as_uri())
            _save(page.screenshot(), out / f"{name}.png")
        template.unlink()
        browser.close()


def _save(screenshot: bytes, path: Path) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(screenshot)) as image:
        image.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
