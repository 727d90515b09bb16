"""`regard data`: counts of words, and the samples that the models that ship get right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.commands import app
from regard.commands.data_and_demo import MOVED

PAGE = Path(__file__).parents[2] / "docs" / "classification.md"


def _idf(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", "idf", *arguments], catch_exceptions=False)
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


def test_the_samples_can_be_written_and_used(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="soundfile is not installed (regard[sound])")
    listed = CliRunner().invoke(app, ["data", "samples"]).output.split()
    saved = CliRunner().invoke(app, ["data", "samples", "--save", str(tmp_path)]).output.splitlines()
    assert [(tmp_path / name).is_file() for name in listed] == [True] * len(saved)
    sounds = [name for name in listed if name.endswith(".wav")]
    lines = CliRunner().invoke(app, ["classify", *(str(tmp_path / name) for name in sounds)]).output.splitlines()
    labels = [line.split()[0] for line in lines if " 0." in line and "and 5 more" in line]
    assert labels == [name.removesuffix(".wav") for name in sounds]
    assert len(sounds) >= 3
    assert len(listed) - len(sounds) >= 3


@pytest.mark.parametrize("name", MOVED)
def test_a_command_of_before_names_the_one_of_now(name: str) -> None:
    for arguments in ([], ["--help"], ["5", "--unknown", "x"]):
        done = CliRunner().invoke(app, [name, *arguments])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == f"regard: `regard {name}` is now `regard data {name}`\n"
    assert CliRunner().invoke(app, ["data", name, "--help"]).exit_code == 0
    assert f"\n  {name} " not in CliRunner().invoke(app, ["--help"]).output
