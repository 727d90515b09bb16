"""The paths in [data] of a recipe."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

Source = str | list[str]
"""A corpus in a recipe: a file, or the file of the sources and that of the targets."""
VARIABLE = re.compile(r"\$\{(\w+)(:-([^}]*))?\}")
"""${NAME} and ${NAME:-else} in a `data.root`."""


def file_names(source: Source) -> list[str]:
    return [source] if isinstance(source, str) else source


def expand_patterns(root: Path, sources: list[Source]) -> list[Source]:
    """The files that names with * stand for, each file once.

    A pattern without files stays as it is, and is then reported as a missing file.
    """
    corpora: dict[tuple[str, ...], Source] = {}
    for source in sources:
        names = [source]
        if isinstance(source, str) and "*" in source:
            names = [*sorted(glob.glob(source, root_dir=root))] or names
        for name in names:
            corpora.setdefault(tuple(os.path.realpath(root / file) for file in file_names(name)), name)
    return list(corpora.values())


def folder(root: str) -> Path:
    """A `data.root`, with ${NAME} and ${NAME:-else} replaced from the environment."""

    def value(match: re.Match[str]) -> str:
        name, fallback = match[1], match[3]
        setting = os.environ.get(name) or fallback
        if setting is None:
            raise ValueError(f"data.root is {root!r}, and the environment has no {name}")
        return setting

    return Path(VARIABLE.sub(value, root)).expanduser()
