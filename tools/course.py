"""The course: `python -m tools.course [CHAPTER …]` runs docs/course/NN_name.md and writes what follows from it.

docs/research.md, a notebook for research, is made in the same way.

A chapter is Markdown with blocks of Python that run in order in one namespace. Written are, in the chapter itself, the
output of each block (a block ```text below it) and links to the figures it drew; figures/NN_name-K.svg, and
figures/NN_name.webp for a block that ends with an `Animation`; and notebooks/NN_name.ipynb. `--check` writes
nothing and prints what differs. A chapter with a comment `<!-- needs: MODULE (HINT) -->` is left out where that module
is not installed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard.files import write_text
from regard.learn import Animation
from tools import svg_figure

COURSE = Path(__file__).parent.parent / "docs" / "course"
RESEARCH = COURSE.parent / "research.md"
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?(?P<links>(?:\n!\[[^\n]*\]\(figures/[^)\n]+\)\n)*)",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"!\[([^\n]*)\]\(figures/[^)\n]+\)")
NEEDS = re.compile(r"^<!-- needs: (\w+) \((.+)\) -->$", re.MULTILINE)


@dataclass
class Result:
    """A chapter after it ran: text with outputs and links, figures by file name, seconds of CPU, its animation."""

    text: str
    figures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    animation: Animation | None = None


def chapters() -> list[Path]:
    """The sources, in order."""
    return sorted(COURSE.glob("[0-9][0-9]_*.md"))


def missing(path: Path) -> str | None:
    """What a chapter needs and is not installed, in words; None if it can run."""
    match = NEEDS.search(path.read_text(encoding="utf-8"))
    if match is None or find_spec(match[1]) is not None:
        return None
    return f"{path.stem} needs {match[1]}: {match[2]}"


def run(path: Path) -> Result:
    """Run the notebook that belongs to a chapter's text, cell by cell, in one namespace and an empty folder."""
    import matplotlib as mpl
    import torch

    mpl.use("Agg")
    kind = torch.get_default_dtype()
    text, parts, figures, end, animation = path.read_text(encoding="utf-8"), [], {}, 0, None
    scope: dict[str, Any] = {"__name__": "__main__"}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mpl.rc_context(svg_figure.STYLE),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        contextlib.ExitStack() as afterwards,
    ):
        afterwards.callback(torch.set_default_dtype, kind)
        warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
        start = time.process_time()
        for match in BLOCK.finditer(text):
            output, shown = _run_block(match["code"], scope, path)
            animation = animation or shown
            drawn = svg_figure.take_figures()
            names = [f"{path.stem}-{len(figures) + at + 1}.svg" for at in range(len(drawn))]
            figures |= {name: svg for name, (svg, _) in zip(names, drawn, strict=True)}
            labels = list(LINK.findall(match["links"]))
            labels += [title for _, title in drawn[len(labels) :]]
            parts += [text[end : match.start()], f"```python\n{match['code']}```\n"]
            parts += [f"\n```text\n{output}```\n"] if output else []
            parts += [f"\n![{label}](figures/{name})\n" for label, name in zip(labels, names, strict=False)]
            end = match.end()
        seconds = time.process_time() - start
    return Result("".join([*parts, text[end:]]), figures, seconds, animation)


def _run_block(code: str, scope: dict[str, Any], path: Path) -> tuple[str, Animation | None]:
    """What a block prints, and the animation that it ends with, if any.

    A widget that it ends with is closed; any other last value is an error.
    """
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, path.name, "exec"), scope)
        value = eval(compile(ast.Expression(last.value), path.name, "eval"), scope) if last else None
    if isinstance(value, Animation):
        return out.getvalue(), value
    if hasattr(value, "_repr_mimebundle_") and hasattr(value, "close"):
        value.close()
    elif value is not None and not hasattr(value, "_ipython_display_"):
        raise ValueError(f"{path.name}: a notebook would show the last value of this block; print it:\n{code}")
    return out.getvalue(), None


def notebook(path: Path, text: str) -> str:
    """The chapter as a notebook, nbformat 4.5: text cells, code cells with what they print, no figures."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str, **more: Any) -> None:
        if source.strip():
            lines = source.strip("\n").splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, **more, "source": lines})

    end = 0
    for match in BLOCK.finditer(text):
        add("markdown", _moved(text[end : match.start()]))
        printed = (match["output"] or "").splitlines(keepends=True)
        outputs = [{"name": "stdout", "output_type": "stream", "text": printed}] if printed else []
        add("code", match["code"], execution_count=None, outputs=outputs)
        end = match.end()
    add("markdown", _moved(text[end:]))
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _moved(text: str) -> str:
    """Text with its relative links as seen from the folder of the notebooks."""
    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", r"](../\1)", text)


def _notebook_path(path: Path) -> Path:
    return path.parent / "notebooks" / f"{path.stem}.ipynb"


def _animation_path(path: Path) -> Path:
    return path.parent / "figures" / f"{path.stem}.webp"


def write(path: Path) -> float:
    """Run a chapter and write its text, notebook and figures; returns its seconds of CPU."""
    result = run(path)
    if result.text != path.read_text(encoding="utf-8"):
        write_text(path, result.text)
    write_text(_notebook_path(path), notebook(path, result.text))
    for old in (path.parent / "figures").glob(f"{path.stem}-*.svg"):
        if old.name not in result.figures:
            old.unlink()
    for name, svg in result.figures.items():
        place = path.parent / "figures" / name
        if not place.exists() or svg_figure.difference(place.read_text(encoding="utf-8"), svg):
            write_text(place, svg)
    if result.animation is not None:
        result.animation.save(_animation_path(path))
    return result.seconds


def problems(path: Path) -> list[str]:
    """Run a chapter; what differs from its files, in words."""
    text, result, wrong = path.read_text(encoding="utf-8"), run(path), []
    if result.text != text:
        lines = zip(result.text.splitlines(), text.splitlines(), strict=False)
        line = next((f"{new!r} instead of {old!r}" for new, old in lines if new != old), "lines at its end")
        wrong.append(f"{path.name}: an output or a link differs: {line}")
    place = _notebook_path(path)
    if not place.exists() or place.read_text(encoding="utf-8") != notebook(path, text):
        wrong.append(f"{place.name} is not the notebook of {path.name}")
    if not result.figures:
        wrong.append(f"{path.name} draws no figure")
    for name, svg in result.figures.items():
        figure = path.parent / "figures" / name
        found = svg_figure.difference(figure.read_text(encoding="utf-8"), svg) if figure.exists() else "it is missing"
        if found:
            wrong.append(f"{name}: {found}")
    if _animation_path(path).exists() != (result.animation is not None):
        wrong.append(f"{_animation_path(path).name}: the chapter has no animation, or it was not written")
    known = {old.name for old in (path.parent / "figures").glob(f"{path.stem}-*.svg")}
    wrong += [f"{name} is drawn by no block" for name in sorted(known - set(result.figures))]
    return [f"{line}; run python -m tools.course {path.stem}" for line in wrong]


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "--check"]
    pages = [*chapters(), RESEARCH]
    chosen = [path for path in pages if not names or any(path.stem.startswith(name) for name in names)]
    if not chosen:
        raise SystemExit(f"no chapter begins with {names}; there are {[path.stem for path in pages]}")
    if "--check" in sys.argv:
        wrong = [line for path in chosen if missing(path) is None for line in problems(path)]
        raise SystemExit("\n".join(wrong) if wrong else 0)
    for path in chosen:
        print(missing(path) or f"{path.stem}: {write(path):.1f} s of CPU")


if __name__ == "__main__":
    main()
