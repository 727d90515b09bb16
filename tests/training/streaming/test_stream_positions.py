"""data/stream.jsonl: a damaged last line is what a kill leaves; a damaged line before it is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.json_file import DamagedFileError
from regard.training.streams import StreamPosition, StreamPositions

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = StreamPosition(0, 0, 0, 0, "s"), StreamPosition(5, 1, 0, 2, "s")


@pytest.mark.parametrize("damage", ['{"update": 5, "num', "\0\0\0\0\n", '{"update": 5}\n'])
def test_a_damaged_last_line_is_left_out_and_replaced(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "stream.jsonl"
    positions = StreamPositions(file, writes=True)
    positions.append(FIRST)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(damage)
    assert positions.read() == [FIRST]
    positions.append(SECOND)
    assert positions.read() == [FIRST, SECOND]
    assert file.read_text(encoding="utf-8").count("\n") == 2


def test_a_last_line_without_its_line_end_counts(tmp_path: Path) -> None:
    file = tmp_path / "stream.jsonl"
    positions = StreamPositions(file, writes=True)
    positions.append(FIRST)
    file.write_text(file.read_text(encoding="utf-8").removesuffix("\n"), encoding="utf-8")
    positions.append(SECOND)
    assert positions.read() == [FIRST, SECOND]


def test_a_damaged_line_before_the_last_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "stream.jsonl"
    positions = StreamPositions(file, writes=True)
    positions.append(FIRST)
    positions.append(SECOND)
    first, second = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text(first[:10] + "\n" + second, encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"stream\.jsonl:1 is no position"):
        positions.find(9)
    with pytest.raises(DamagedFileError, match=r"stream\.jsonl:1 is no position"):
        positions.append(SECOND)
