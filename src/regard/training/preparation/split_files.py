"""The text files of a recipe's splits, each hashed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data.preparation.split_preparation import Split
from ..recipe.data_section import FilesData
from .recipe_corpus import corpus_parts

if TYPE_CHECKING:
    from ...data.preparation.corpus_part import CorpusPart
    from ...data.preparation.line_blocks import FileScan
    from ..recipe.recipe import Recipe


def in_blocks(recipe: Recipe) -> bool:
    """Whether the data is text in files, which several processes share."""
    return isinstance(recipe.data, FilesData) and recipe.source.kind == "text"


class SplitFiles:
    """The splits of data in files."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._scans: dict[CorpusPart, tuple[CorpusPart, tuple[FileScan, ...]]] = {}

    def split(self, name: str) -> Split:
        """The files of a split; a file that was not met before is read and hashed."""
        data = self.recipe.data
        assert isinstance(data, FilesData)
        scanned = []
        for part in corpus_parts(data, "train" if data.hold_out else name):
            if part not in self._scans:
                self._scans[part] = part.scan()
            scanned.append(self._scans[part])
        return Split(
            tuple(part for part, _ in scanned),
            tuple(scans for _, scans in scanned),
            longest=data.longest,
            hold_out=data.hold_out,
            valid=name == "valid",
            keeps_pairs=name == "valid",
        )

    def require_unchanged(self) -> None:
        """Raise an error where a file was changed since it was hashed."""
        for part, scans in self._scans.values():
            part.require_unchanged(scan.stamp for scan in scans)
