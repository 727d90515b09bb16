"""The course: every notebook runs and prints what stands in it, and is made from the page beside it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from regard.learn import questions

pytest.importorskip("matplotlib", reason="the figures of the course need matplotlib")

from tools import course, svg_figure

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [path.stem for path in course.chapters()]


@pytest.mark.parametrize("path", [*course.chapters(), course.RESEARCH], ids=[*NAMES, "research"])
def test_the_chapter_runs_and_its_files_are_what_it_makes(path: Path) -> None:
    if reason := course.missing(path):
        pytest.skip(reason)
    assert course.problems(path) == []


@pytest.mark.parametrize("path", [*course.chapters(), course.RESEARCH], ids=[*NAMES, "research"])
def test_the_notebook_is_valid_and_has_the_code_of_the_page(path: Path) -> None:
    """nbformat 4.5: cells with unique ids; no path of a machine; the code is that of the chapter, which runs above."""
    content = json.loads((path.parent / "notebooks" / f"{path.stem}.ipynb").read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(ids) == len(set(ids))
    code = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    assert code == [block.strip("\n") for block in blocks]
    assert not re.search(r"/(?:home|work|tmp|Users)/", json.dumps(content))


@pytest.mark.parametrize("path", course.chapters(), ids=NAMES)
def test_the_chapter_says_what_it_covers_and_asks(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"\A# \d+\. .+\n\n\*Covers deck [A-E], slide", text), "the first line names decks and slides"
    assert re.search(r"^    .*=", text, re.MULTILINE), "a formula"
    number = int(path.stem[:2])
    for task in questions(number):
        assert f'check("{task.name}"' in text, f"{task.name} is not asked in the chapter"
    assert f"({path.name})" in (course.COURSE / "README.md").read_text(encoding="utf-8"), "the index lists it"


def test_a_changed_output_figure_or_notebook_is_reported(tmp_path: Path) -> None:
    for folder in ("figures", "notebooks"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "01_example.md"
    path.write_text(
        "# 1. Example\n\n```python\nimport matplotlib.pyplot as plt\nfrom pathlib import Path\nprint(1 + 1)\n"
        'plt.plot([1, float(Path(__file__).read_text())])\nplt.title("a line [m]")\nplt.show()\n```\n'.replace(
            "Path(__file__)", f"Path({str(tmp_path / 'height')!r})"
        )
    )
    (tmp_path / "height").write_text("2")
    course.write(path)
    assert "```\n\n```text\n2\n```\n\n![a line [m]](figures/01_example-1.svg)\n" in path.read_text()
    assert course.problems(path) == []
    (tmp_path / "height").write_text("2.0000001")
    assert course.problems(path) == []
    (tmp_path / "height").write_text("3")
    assert "01_example-1.svg" in course.problems(path)[0]
    (tmp_path / "height").write_text("2")
    path.write_text(path.read_text().replace("```text\n2\n", "```text\n3\n"))
    wrong = course.problems(path)
    assert "'2' instead of '3'" in wrong[0]
    assert "is not the notebook" in wrong[1]


def test_a_block_that_ends_with_a_value_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "01_example.md"
    path.write_text("```python\n1 + 1\n```\n")
    with pytest.raises(ValueError, match="a notebook would show"):
        course.run(path)


def test_an_animation_is_written_and_missed(tmp_path: Path) -> None:
    for folder in ("figures", "notebooks"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "01_example.md"
    path.write_text(
        "```python\nimport matplotlib.pyplot as plt\nfrom regard.learn import Animation\n"
        "figure, ax = plt.subplots(figsize=(1, 1))\nfilm = Animation(figure, lambda n: ax.plot([n]), 2)\n"
        "plt.plot([1])\nfilm\n```\n"
    )
    course.write(path)
    assert (tmp_path / "figures" / "01_example.webp").read_bytes()[8:12] == b"WEBP"
    assert course.problems(path) == []
    (tmp_path / "figures" / "01_example.webp").unlink()
    assert "no animation, or it was not written" in course.problems(path)[0]


def test_a_chapter_whose_module_is_not_installed_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "01_example.md"
    path.write_text("# 1. Example\n\n<!-- needs: no_such_module_here (pip install it) -->\n")
    assert course.missing(path) == "01_example needs no_such_module_here: pip install it"
    path.write_text("# 1. Example\n\n<!-- needs: torch (pip install torch) -->\n")
    assert course.missing(path) is None


def test_drawings_are_compared_by_number_and_colour() -> None:
    old = '<path d="M 1.0 2.0" style="fill: #102030"/>'
    assert svg_figure.difference(old, old.replace("2.0", "2.1").replace("#102030", "#112131")) == ""
    assert "5.0 instead of 2.0" in svg_figure.difference(old, old.replace("2.0", "5.0"))
    assert "#ff2030" in svg_figure.difference(old, old.replace("#102030", "#ff2030"))
    assert svg_figure.difference(old, old + "<g/>")
