"""No corpus is trained on and also validated or tested with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.training.corpora import check
from regard.training.recipe_sections import FilesData, StreamData

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in {"train": "a\tb\n", "copy": "a\tb\n", "other": "c\td\n", "empty": "", "none": ""}.items():
        (tmp_path / f"{name}.tsv").write_text(content)
    (tmp_path / "link.tsv").symlink_to(tmp_path / "train.tsv")
    (tmp_path / "below").mkdir()
    return tmp_path


KINDS = [FilesData, StreamData]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("name", ["train.tsv", "link.tsv", "below/../train.tsv"])
def test_the_same_file_is_refused(kind: type[FilesData | StreamData], root: Path, split: str, name: str) -> None:
    names = {"valid": ["other.tsv"], split: [name]}
    with pytest.raises(ValueError, match=rf"train\.tsv: in data\.train = .* and in data\.{split} = .*trained on"):
        check(kind(root=str(root), train=["train.tsv"], **names))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_copy_is_refused(kind: type[FilesData | StreamData], root: Path, split: str) -> None:
    names = {"valid": ["other.tsv"], split: ["copy.tsv"]}
    with pytest.raises(ValueError, match=rf"train\.tsv of data\.train and .*copy\.tsv of data\.{split} have the same"):
        check(kind(root=str(root), train=["train.tsv"], **names))


def test_the_error_says_how_to_validate_with_a_part_of_the_file(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.hold_out = 10"):
        check(FilesData(root=str(root), train=["train.tsv"], valid=["train.tsv"]))
    with pytest.raises(ValueError, match=r"in data\.test .*give data\.test another file$"):
        check(FilesData(root=str(root), train=["train.tsv"], valid=[], hold_out=10, test=["train.tsv"]))


@pytest.mark.parametrize("kind", KINDS)
def test_other_files_are_accepted(kind: type[FilesData | StreamData], root: Path) -> None:
    """Files of labels may be the same, and so may empty files, and those that validate and test."""
    labels = kind(root=str(root), train=[["train.tsv", "copy.tsv"]], valid=[["other.tsv", "copy.tsv"]])
    check(labels)
    check(kind(root=str(root), train=["train.tsv", "empty.tsv"], valid=["other.tsv"], test=["other.tsv", "none.tsv"]))
