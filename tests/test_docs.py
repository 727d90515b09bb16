"""Every block of Python in the documentation runs, and what it prints is what stands under it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
BASES = ("", "src/regard", "src/regard/attention", "src/regard/viewer", "src/regard/viewer/static")
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


def _blocks(name: str) -> list[tuple[str, str | None]]:
    return [(code, printed or None) for code, printed in BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("README.md", 1),
        ("CONTRIBUTING.md", 1),
        ("docs/tour.md", 15),
        ("docs/translation.md", 1),
        ("docs/training.md", 1),
        ("docs/seeing.md", 4),
        ("docs/effects.md", 5),
        ("docs/language_models.md", 1),
        ("docs/image_captioning.md", 1),
        ("docs/http_api.md", 1),
        ("docs/viewer.md", 1),
    ],
)
def test_code_runs_and_prints_what_it_says(name: str, least: int) -> None:
    blocks = _blocks(name)
    assert len(blocks) >= least
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    for code, printed in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), scope)
        if printed is not None:
            assert out.getvalue() == printed, f"in {name}, after:\n{code}"


def test_every_local_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_path_of_the_source_that_is_named_exists() -> None:
    """`attention/energies/energies.py` may stand for `src/regard/attention/energies/energies.py`."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for path in re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|js))?)`", page.read_text(encoding="utf-8")):
            existing = [(ROOT / base / path).exists() for base in BASES]
            assert any(existing) or path.startswith(("runs/", "model/", "photos/")), f"{page.name} names {path}"


def test_the_performance_page_is_what_the_benchmarks_printed() -> None:
    from tools.performance_page import PAGE, page

    assert page() == PAGE.read_text(encoding="utf-8"), "run python -m tools.performance_page"


def test_the_readmes_claims_about_its_ten_lines() -> None:
    """The comment says `< 1e-5`; the line itself only evaluates it."""
    scope: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(_blocks("README.md")[0][0], scope)
    assert float(scope["w"].fidelity(scope["v"], scope["z"]).max()) < 1e-5
    assert len([line for line in _blocks("README.md")[0][0].splitlines() if line.strip()]) <= 14


def test_every_promise_names_the_test_that_holds_it() -> None:
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    rows = [row for row in re.findall(r"^\| (.+) \| (.+) \|$", text, re.MULTILINE) if row[1] != "test"]
    promises = [(promise, tests) for promise, tests in rows if " | " not in promise]  # not the table of the fuzzer
    assert len(promises) > 15
    for promise, tests in promises:
        files = re.findall(r"`(tests/[\w/.]+)`", tests)
        assert files, promise
        for file in files:
            assert (ROOT / file).is_file(), file
