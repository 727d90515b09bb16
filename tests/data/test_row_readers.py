"""A header that is read as a row is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from regard.data import Pair
from regard.data.row_readers import header_remark


@pytest.mark.parametrize(
    ("sides", "where", "columns", "names", "noticed"),
    [
        (("source", "target"), "a.csv:1", (0, 1), (), True),
        (("Text", "Label"), "a.csv:1", (1, 0), (), True),
        (("kurdish", "zaza"), "a.csv:1", (0, 1), ("Kurdish", "zaza"), True),
        (("kurdish", "zaza"), "a.csv:1", (0, 1), (), False),
        (("source", "une source"), "a.csv:1", (0, 1), (), False),
        (("source", "target"), "a.csv:2", (0, 1), (), False),
        (("source", "target"), "a.csv:1", ("x", "y"), (), False),
    ],
)
def test_header(sides: tuple[str, str], where: str, columns: Any, names: tuple[str, ...], noticed: bool) -> None:
    remark = header_remark(Pair(*sides, 0, where), columns, "--columns {},{}", names)
    assert (remark is not None) == noticed
    if remark is not None:
        assert remark.startswith(f"a.csv:1 looks like a header ({sides[0]!r}, {sides[1]!r})")
        assert remark.endswith(f"--columns {sides[0]},{sides[1]}")
