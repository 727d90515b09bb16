"""`regard idf`: what the page on classification prints, and documents as files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.commands.typer_app import app

PAGE = Path(__file__).parents[2] / "docs" / "classification.md"


def _idf(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["idf", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_it_prints_the_table_of_the_page(tmp_path: Path) -> None:
    example = re.search(r"people\.txt <<END\n(.*?)END\n.*?```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert example is not None
    file = tmp_path / "people.txt"
    file.write_text(example[1], encoding="utf-8")
    assert _idf(str(file), "--word", "David", "--word", "Beckham", "--word", "the") == example[2]


def test_several_files_are_a_document_each(tmp_path: Path) -> None:
    for name, text in (("a", "one two\none three"), ("b", "one")):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    lines = _idf(str(tmp_path / "a.txt"), str(tmp_path / "b.txt")).splitlines()
    assert lines[0] == "2 documents"
    assert [line.split()[:3] for line in lines[2:]] == [
        ["three", "1", "0.693"],
        ["two", "1", "0.693"],
        ["one", "2", "0.000"],
    ]


def test_a_word_of_no_document_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one", encoding="utf-8")
    with pytest.raises(ValueError, match="no document has the word 'two'"):
        _idf(str(tmp_path / "a.txt"), "--word", "two")
