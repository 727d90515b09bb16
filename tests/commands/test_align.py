"""`regard align`: a table, a picture, gold links, pairs of a file, and what is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("typer")
pytest.importorskip("pydantic")

from tests.support.command_line import command_output

if TYPE_CHECKING:
    from pathlib import Path

SOURCE, TARGET = "Where is the library?", "Où est la bibliothèque ?"


def test_a_pair_with_gold_links_and_a_picture(tmp_path: Path) -> None:
    plot = tmp_path / "alignment.png"
    links = ["--links", "0-0 1-1 2-2 3-3", "--possible", "3-4"]
    out = command_output("align", SOURCE, TARGET, *links, "--save-plot", str(plot))
    rows = [line.split() for line in out.splitlines()]
    assert ["est", "is"] in [row[:2] for row in rows]
    assert ["bibliothèque", "library?"] in [row[:2] for row in rows]
    # Of five links four are right (Où is linked to "library?"): 1 - (3 + 4) / (5 + 4).
    assert ["Où", "library?"] in [row[:2] for row in rows]
    assert "alignment error rate 0.222, of 1 pair\n" in out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_the_lectures() -> None:
    """The reversed names, and the French verb that holds a whole English phrase."""
    model = ["--model", "phrasebook-bahdanau-en-fr"]
    source = "The agreement on the European Economic Area was signed in August 1992."
    target = "L'accord sur la zone économique européenne a été signé en août 1992."
    out = command_output("align", source, target, *model)
    linked = [line.split()[:2] for line in out.splitlines()]
    for pair in ("zone area", "économique economic", "européenne european", "signé signed", "août august", "1992 1992"):
        assert pair.split() in linked
    out = command_output("align", "he hit me with a pie", "il m' a entarté", *model)
    linked = [line.split()[:2] for line in out.splitlines()]
    for pair in ("il he", "m' me", "a hit", "entarté pie"):
        assert pair.split() in linked


def test_pairs_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(f"{SOURCE}\t{TARGET}\t0-0 1-1\nI sleep.\tJe dors.\t0-0 1-1\n", encoding="utf-8")
    out = command_output("align", "--file", str(file), "--columns", "0,1,2")
    assert "of 2 pairs" in out
    assert ["Je", "I"] in [line.split()[:2] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((SOURCE,), "1 text is given"),
        ((SOURCE, TARGET, "--links", "9-0"), "link 9-0 is outside the pair"),
        ((SOURCE, TARGET, "--possible", "0-0"), "give --links too"),
        ((SOURCE, " "), "has an empty side"),
        ((SOURCE, TARGET, "--layer", "3"), "layer is 3, and this model has 1 layer"),
        ((SOURCE, TARGET, "--columns", "0,1"), "--columns describes a --file"),
        ((SOURCE, TARGET, "--model", "shakespeare-transformer"), "is a model for `regard generate`"),
        ((SOURCE, TARGET, "--model", "phrasebook-seq2seq-en-fr"), "this model has no attention, so it aligns nothing"),
    ],
)
def test_refusals(words: tuple[str, ...], expected: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(expected)):
        command_output("align", *words)
