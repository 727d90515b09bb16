"""The noun agrees with its number."""

from __future__ import annotations

import pytest

from regard.counted_noun import counted


@pytest.mark.parametrize(("count", "expected"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1500, "1,500 rows")])
def test_the_noun_agrees_with_its_number(count: int, expected: str) -> None:
    assert counted(count, "row") == expected


def test_a_plural_of_its_own() -> None:
    assert [counted(n, "corpus", "corpora") for n in (1, 2)] == ["1 corpus", "2 corpora"]
