"""No corpus is trained on and also validated or tested with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...checksums import sha256
from ..recipe.data_section import FilesData, StreamData
from .corpus_paths import expand_patterns, file_names, folder

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_SPLITS = ("valid", "test")


def require_other_names(data: FilesData | StreamData) -> None:
    """Raise an error where a file, or a split of the dataset, is in `train` and in `valid` or `test`.

    Of a pair of files, the one with the sources counts: two splits may have the same file of labels.
    """
    for other in OTHER_SPLITS:
        common = set(_source_names(data, "train")) & set(_source_names(data, other))
        if common:
            raise ValueError(
                f"{', '.join(sorted(common)[:3])}: in data.train = {data.train} and in data.{other} = "
                f"{getattr(data, other)}: the pairs would be trained on; {_advice(data, other)}"
            )


def require_other_contents(data: FilesData | StreamData) -> None:
    """Raise an error where a file of `valid` or `test` is a copy of one of `train`. Folders are not compared."""
    if isinstance(data, StreamData) and data.dataset:
        return
    sizes: dict[int, list[str]] = {}
    for name in _source_names(data, "train"):
        if Path(name).is_file():
            sizes.setdefault(os.path.getsize(name), []).append(name)
    for other in OTHER_SPLITS:
        for name in _source_names(data, other):
            size = os.path.getsize(name) if Path(name).is_file() else 0
            for trained in sizes.get(size, []) if size else []:
                if sha256(trained) == sha256(name):
                    raise ValueError(
                        f"{trained} of data.train and {name} of data.{other} have the same content: the pairs would "
                        f"be trained on; {_advice(data, other)}"
                    )


def _source_names(data: FilesData | StreamData, split: str) -> Iterator[str]:
    """The files with the sources of a split, without symbolic links; of a dataset, the names of its splits."""
    sources: list[str | list[str]] = getattr(data, split)
    if isinstance(data, StreamData) and data.dataset:
        yield from (name for source in sources for name in file_names(source))
        return
    root = folder(data.root)
    if isinstance(data, StreamData):
        sources = expand_patterns(root, sources)
    yield from (os.path.realpath(root / file_names(source)[0]) for source in sources)


def _advice(data: FilesData | StreamData, other: str) -> str:
    if isinstance(data, StreamData):
        return "give data.train other names, or a pattern that leaves them out"
    held_out = ", or leave data.valid empty and set data.hold_out = 10 to validate with a tenth of data.train"
    return f"give data.{other} another file{held_out if other == 'valid' else ''}"
