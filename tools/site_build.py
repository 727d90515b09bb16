"""The site, whole: `python -m tools.site_build FOLDER` writes pages, viewer and cards, and checks them.

`--quick` leaves the cards, the models and the traces of large ones out, for tests. The site is static: any host can
serve it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import torch

from . import site_check, site_pages, site_viewer, social_card


def build(out: Path, *, quick: bool = False) -> None:
    """Write the site into `out`, which is replaced."""
    out = out.resolve()  # mkdocs would take a relative path from the folder of its pages
    if out.exists():
        shutil.rmtree(out)
    with tempfile.TemporaryDirectory() as place:
        site_pages.build(Path(place) / "pages", out)
    card = social_card.tags("See what a neural network looks at", f"{site_pages.LIVE}/", "live")
    texts = [text for text in site_viewer.TEXTS if text[0].startswith("tatoeba")] if quick else None
    site_viewer.write(out / site_pages.LIVE, texts=texts, card=card, graphs=not quick)
    if not quick:
        social_card.write(out)


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    torch.set_num_threads(2)
    out, quick = Path(arguments[0]), "--quick" in sys.argv
    build(out, quick=quick)
    problems = site_check.problems(out, cards=not quick)
    print(f"{out}: {site_check.size(out) / 1e6:.1f} MB, {len(list(out.rglob('*.html')))} pages")
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
