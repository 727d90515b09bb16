"""The examples in the help of every command are accepted by its parser, and those of `regard train` by the recipe."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest
import typer

from regard.commands import app

if TYPE_CHECKING:
    from pathlib import Path

    import click

GROUP = typer.main.get_command(app)
COMMANDS: dict[str, click.Command] = {name: each for name, each in GROUP.commands.items() if not each.hidden}  # type: ignore[attr-defined]
COMMANDS |= {f"data {name}": each for name, each in COMMANDS.pop("data").commands.items()}  # type: ignore[attr-defined]
EXAMPLE = re.compile(r"^ *(?:[A-Z_]+=\S+ )*regard (?P<words>\S.*)$", re.MULTILINE)


def examples(name: str) -> list[list[str]]:
    """The arguments of each, without what follows in a pipe."""
    found = []
    for match in EXAMPLE.finditer((COMMANDS[name].help or "").partition("Examples:")[2]):
        words = shlex.split(match["words"], comments=True)
        end = next((n for n, word in enumerate(words) if word in ("|", ">", "<", "&&")), len(words))
        found.append(words[:end])
    return found


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_examples_are_parsed(name: str) -> None:
    given = examples(name)
    assert given, "the help has no examples"
    for words in given:
        own = 2 if words[0] == "data" else 1
        COMMANDS[" ".join(words[:own])].make_context(words[0], words[own:])


def test_examples_of_train_are_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic")
    from regard.training import recipe_files

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('[data]\nkind = "files"\nroot = "."\ntrain = ["a.tsv"]\nvalid = ["b.tsv"]\n')
    for words in examples("train"):
        context = COMMANDS["train"].make_context("train", words[1:])
        settings = list(context.params["settings"] or [])
        if context.params["resume"] is None:
            recipe_files.load_recipe(context.params["recipe"], settings)
