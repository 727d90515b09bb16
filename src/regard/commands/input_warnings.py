"""What is odd about lines that are read as texts, told on stderr: each but once, for there may be millions of lines."""

from __future__ import annotations

import typer

from .text_input import ending, no_names


class Oddities:
    """Tabs, which separate nothing here; and names of files, which are read as words."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.tab = self.name = False

    def line(self, number: int, text: str) -> None:
        if not self.tab and "\t" in text:
            self.tab = True
            typer.echo(f"regard: line {number} holds a tab; the whole line is read as the text, not a column", err=True)
        if not self.name and ending(text) is not None:
            try:
                no_names([text], self.model)
            except ValueError as error:
                self.name = True
                typer.echo(f"regard: line {number}: {error}; here it is read as words, and so is any other", err=True)
