"""The pages of the site: the documentation, the API reference and the gallery, as a folder that mkdocs builds.

The pages of docs/ are copied with their links changed; those of the reference list what is public in each package.
"""

from __future__ import annotations

import html
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

import regard

ROOT = Path(__file__).parent.parent
DOCS, SITE = ROOT / "docs", ROOT / "site"
COURSE = DOCS / "course"
HOMEPAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
ADDRESS = os.environ.get("SITE_URL") or HOMEPAGE
SLUGIFY = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
"""The names of headings as GitHub makes them, since the links of the pages follow those."""
LIVE = "live"
"""The folder of the viewer. Not "viewer": that is the page docs/viewer.md."""
MOVED = {
    "docs/README.md": "overview.md",
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CITATION.cff": "CITATION.cff",
    "LICENSE": "LICENSE",
}
"""Files of the repository by their names on the site; pages of docs/ keep theirs."""
NAV: dict[str, list[str]] = {
    "Start": ["readme.md", "overview.md", "tour.md", "variants.md", "glossary.md"],
    "Look": ["viewer.md", "seeing.md", "effects.md", "research.md", "architectures.md", "gallery.md", "http_api.md"],
    "Train": [
        "translation.md",
        "language_models.md",
        "classification.md",
        "image_captioning.md",
        "training.md",
        "scale.md",
        "serving.md",
        "systems.md",
        "results.md",
    ],
    "Speed": ["performance.md", "additive_kernel.md"],
    "Contribute": ["contributing.md", "architecture.md", "lab_notes.md", "changelog.md", "security.md"],
}
"""Pages by tab; a page of docs/ that is not listed comes last under "More"."""
GROUPS = {
    "attend": ("attend, received, lookup, explain, Plan", "Computing attention"),
    "weights": ("Weights, Stats, Top, Contributions, ContributionStats", "What attention weights are"),
    "energies": (
        "Energy, Dot, ScaledDot, General, Additive, Concat, Cosine, Gaussian, InverseDistance, Exact",
        "Energies",
    ),
    "normalizers": (
        "Normalizer, Softmax, Sparsemax, Entmax, Proportional, Hard, Sigmoid, Softpick, StickBreaking, Unnormalized",
        "Normalizers",
    ),
    "masks": ("Mask, causal, padding, prefix, window, documents, dense, mask_mod", "Masks"),
    "positions": ("Modified, Rotary, Alibi, RelativeBias, Bias, SoftCap", "Positions and modifiers"),
    "watching": ("watch, note, Seen, Call, load_trace", "Watching models"),
}
"""Pages of the reference for the names of `regard` itself; names in no group come on a page of their own."""
PACKAGES = [
    "regard.layers",
    "regard.models",
    "regard.data",
    "regard.decoding",
    "regard.decoding.onnx",
    "regard.training",
    "regard.seeing.analysis",
]
VIEWS = {
    "heads": "One colour for each head: lines from a word to the words it looks at.",
    "model": "Every head of a model as a small map, with its pattern.",
    "map": "One head over thousands of tokens, zoomed like a map.",
    "neuron": "How one weight comes about: query, keys, products, energy.",
    "generation": "What each written token looked at.",
    "translate": "A sentence in French, and the words each word was made from.",
    "picture": "A caption, and where the model looked for each word.",
    "sound": "When a model listened.",
    "read": "A text, its label, and the words that decided it.",
    "lookup": "Attention as look-up: keys, values, energies, weights.",
    "inside": "One layer step by step: every matrix from X to its output.",
    "effects": "Which heads an answer depends on: what each adds to its score.",
}

WRITING = "view=generation&trace=new&model=shakespeare-transformer&sentence=My%20lord%2C%20the%20night%20is&generate=32"
LINKS = {
    "heads": f"{LIVE}/index.html",
    "generation": f"{LIVE}/index.html#{html.escape(WRITING)}",
    "effects": "viewer/#effects",
}
"""Where a tile leads if the name of its view is not enough: the page's own first view, a text that a model writes, and
the documentation of a view that needs a backward pass, which no browser computes."""
TILES, TILE_WIDTH = "assets/tiles", 560
"""The folder of the small pictures on the front page, and their pixels across."""
VIEWER_LINK = re.compile(r"^\[([^\]]+)\]\(" + re.escape(HOMEPAGE + LIVE) + r"/index\.html#(\S+)\)$", re.MULTILINE)
"""A paragraph that is nothing but a link into the viewer."""


def write(folder: Path) -> Path:
    """Write the pages and mkdocs.yml into a new folder; returns the path of mkdocs.yml."""
    pages = folder / "docs"
    (pages / "assets").mkdir(parents=True)
    for path in sorted(DOCS.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            (pages / path.relative_to(DOCS)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, pages / path.relative_to(DOCS))
    for path in [*sorted(DOCS.glob("*.md")), *sorted(COURSE.glob("*.md")), *(ROOT / name for name in MOVED)]:
        _write_page(path, pages, _site_name(path))
    index = (SITE / "index.md").read_text(encoding="utf-8").replace("TILES", tiles(""))
    (pages / "index.md").write_text(index, encoding="utf-8")
    _write_tiles(pages / TILES)
    (pages / LIVE).mkdir()
    (pages / LIVE / "index.html").write_text("the viewer comes here", encoding="utf-8")  # so that links to it are known
    reference = _write_reference(pages / "reference")
    for name in ("site.css", "site.js"):
        shutil.copy(SITE / name, pages / "assets" / name)
    shutil.copy(ROOT / "src" / "regard" / "viewer" / "static" / "icon.svg", pages / "assets" / "icon.svg")
    shutil.copytree(SITE / "overrides", folder / "overrides")
    settings = yaml.safe_load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))
    settings |= {"site_url": ADDRESS, "docs_dir": "docs", "site_dir": "site", "nav": navigation(pages, reference)}
    settings["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
    settings["validation"] = {"nav": {"omitted_files": "warn"}, "links": {"unrecognized_links": "warn"}}
    path = folder / "mkdocs.yml"
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    path.write_text(text.replace("slugify: github", f"slugify: {SLUGIFY}"), encoding="utf-8")
    return path


def build(folder: Path, out: Path) -> None:
    """Write the pages into `folder` and build them into `out`; a warning, such as a dead link, is an error."""
    settings = write(folder)
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        settings,
        "--site-dir",
        out,
    ]
    subprocess.run(command, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    # The theme would fetch two scripts from a content network where a page draws diagrams or is opened from a disk.
    for script in (out / "assets" / "javascripts").glob("bundle.*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(re.sub(r"https://unpkg\.com/[\w@./-]+", "", text), encoding="utf-8")
    for page in out.rglob("*.html"):  # the empty corner of a table heads nothing
        page.write_text(re.sub(r"<th([^>]*)></th>", r"<td\1></td>", page.read_text("utf-8")), encoding="utf-8")
    # Not needed: source maps, and the search's stemmers of other languages.
    for path in out.rglob("*.map"):
        path.unlink()
    shutil.rmtree(out / "assets" / "javascripts" / "lunr", ignore_errors=True)


def _site_name(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return MOVED.get(name, name.removeprefix("docs/"))


def _write_page(path: Path, pages: Path, name: str) -> None:
    out = pages / name
    if path.suffix != ".md":
        shutil.copy(path, out)
        return
    out.parent.mkdir(exist_ok=True)
    text = path.read_text(encoding="utf-8")

    def changed(target: str) -> str:
        file, _, part = target.partition("#")
        existing = (path.parent / file).resolve()
        if not file or not existing.exists() or not existing.is_relative_to(ROOT):
            return target
        there = os.path.relpath(_site_name(existing), Path(name).parent)
        return f"{there}#{part}" if part else there

    link = re.compile(r"(\]\(|(?:src|srcset)=\")([^)\"\s:]+)(?=[)\"])")
    text = link.sub(lambda match: match[1] + changed(match[2]), text)
    # A table, unlike in GitHub's Markdown, needs an empty line before it; pictures in two colours follow the page's.
    picture = re.compile(r'<picture><source media="[^"]+" srcset="([^"]+)"><img alt="([^"]*)" src="([^"]+)"></picture>')
    text = picture.sub(
        r'<img class="light-only" alt="\2" src="\3" loading="lazy">'
        r'<img class="dark-only" alt="\2" src="\1" loading="lazy">',
        text,
    )
    text = VIEWER_LINK.sub(_embedded_viewer, text)
    # Raw HTML is resolved against the page's own address, which is one folder deeper than its file.
    text = re.sub(r'(<img [^>]*src=")(?!https?:|/|\.\./)', r"\1../", text)
    out.write_text(text, encoding="utf-8")


def _embedded_viewer(match: re.Match[str]) -> str:
    """The link, within this site, and the view below it."""
    title, state = match[1], match[2]
    frame = f'title="{html.escape(title)}" loading="lazy" src="../../{LIVE}/index.html#{html.escape(state)}"'
    return f'[{title}](../{LIVE}/index.html#{state})\n\n<iframe class="view" {frame}></iframe>'


def _write_tiles(folder: Path) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for name in [f"{view}-{scheme}" for view in VIEWS for scheme in ("light", "dark")]:
        with Image.open(DOCS / "viewer" / f"{name}.png") as picture:
            size = TILE_WIDTH, round(TILE_WIDTH * picture.height / picture.width)
            small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.save(folder / f"{name}.webp", quality=75, method=6)


def tiles(up: str) -> str:
    """A link for each view, most of them into the viewer, with its picture."""
    parts = []
    for name, words in VIEWS.items():
        pictures = "".join(
            f'<img class="{scheme}-only" alt="" loading="lazy" src="{up}{TILES}/{name}-{scheme}.webp">'
            for scheme in ("light", "dark")
        )
        title = {"lookup": "Look-up", "read": "Classify"}.get(name, name.capitalize())
        link = up + LINKS.get(name, f"{LIVE}/index.html#view={name}")
        parts.append(f'<a href="{link}">{pictures}<span><b>{title}</b> {words}</span></a>')
    return "\n".join(parts)


def navigation(pages: Path, reference: list[tuple[str, str]]) -> list[Any]:
    there = {path.name for path in pages.glob("*.md")} - {"index.md"}
    listed = {name for names in NAV.values() for name in names}
    tabs: list[Any] = [{"Home": "index.md"}, {"Try it": f"{LIVE}/index.html"}]
    for title, names in {**NAV, "More": sorted(there - listed)}.items():
        found = [{"Getting started": name} if name == "readme.md" else name for name in names if name in there]
        if found:
            tabs.append({title: found})
    tabs.insert(
        3,
        {"Course": ["course/README.md", *sorted(f"course/{x.name}" for x in (pages / "course").glob("[0-9a-z]*.md"))]},
    )
    entries: list[Any] = ["reference/index.md", *({title: f"reference/{name}"} for name, title in reference)]
    return [*tabs, {"Python API": entries}]


def _write_reference(folder: Path) -> list[tuple[str, str]]:
    """A page for each group of names; returns file names and titles."""
    folder.mkdir()
    groups = {page: ("regard", names.split(", "), title) for page, (names, title) in GROUPS.items()}
    grouped = {name for _, names, _ in groups.values() for name in names}
    missing = sorted(set(regard.__all__) - grouped)
    if missing:
        groups["other"] = ("regard", missing, "Other names")
    for package in PACKAGES:
        module = importlib.import_module(package)
        groups[package.removeprefix("regard.").replace(".", "_")] = (package, public_names(module), package)
    pages, lines = [], []
    for page, (package, names, title) in groups.items():
        module = importlib.import_module(package)
        known = [name for name in names if hasattr(module, name)]
        intro = "" if package == "regard" else (inspect.getdoc(module) or "") + "\n\n"
        text = f"# {title}\n\n{intro}" + "\n".join(_directive(package, module, name) for name in known)
        (folder / f"{page}.md").write_text(text, encoding="utf-8")
        pages.append((f"{page}.md", title))
        shown = ", ".join(f"[`{name}`]({page}.md#{_path(package, module, name)})" for name in known)
        lines.append(f"| [{title}]({page}.md) | {shown} |")
    head = "# Python API\n\nEverything public: the names of `regard` itself, and those of its documented packages.\n\n"
    (folder / "index.md").write_text(head + "| page | names |\n|---|---|\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return pages


def public_names(module: Any) -> list[str]:
    """`__all__`, or what the module imports from regard under its own name."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("regard")
    ]


def _path(package: str, module: Any, name: str) -> str:
    """Where a name is defined: mkdocstrings reads the source, in which packages only import it."""
    value = getattr(module, name)
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else f"{package}.{name}"


def _directive(package: str, module: Any, name: str) -> str:
    path, value = _path(package, module, name), getattr(module, name)
    if not hasattr(value, "__qualname__"):  # a constant
        return f"## `{name}` {{ #{path} }}\n\n    {name} = {value!r}\n"
    return f'::: {path}\n    options:\n      heading: "{name}"\n      toc_label: "{name}"\n'
