"""The noun agrees with its number."""

from __future__ import annotations

import ast
import itertools
import re

import pytest

from regard.messages import count_of
from tests.support.paths import ROOT

NOUNS = (
    "batches|captions|channels|characters|checkpoints|columns|corpora|errors|frames|groups|labels|layers|lines|pairs"
)
NOUNS += "|pieces|processes|references|rows|samples|texts|tokens|updates|weights|words"
PLURAL = re.compile(rf" ({NOUNS})\b(?! per second|/s)")
ALWAYS_SEVERAL = {
    "len(updates)",
    "len(too_long)",
    "split.rows",
    "self.data.longest",
    "self.recipe.tokenizer.size",
    "side",
}  # 1 is another sentence, or absurd; a side is no number


@pytest.mark.parametrize(("count", "expected"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1500, "1,500 rows")])
def test_the_noun_agrees_with_its_number(count: int, expected: str) -> None:
    assert count_of(count, "row") == expected


def test_a_plural_of_its_own() -> None:
    assert [count_of(n, "corpus", "corpora") for n in (1, 2)] == ["1 corpus", "2 corpora"]


@pytest.mark.parametrize("package", ["training", "data"])
def test_no_message_has_a_plural_for_any_number(package: str) -> None:
    """A value in an f-string before a plural is a constant, or its noun is written by `count_of`."""
    wrong = []
    for path in sorted((ROOT / "src" / "regard" / package).rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for node in (each for each in nodes if isinstance(each, ast.JoinedStr)):
            for value, text in itertools.pairwise(node.values):
                if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                    given = ast.unparse(value.value)
                    if PLURAL.match(str(text.value)) and not given.isupper() and given not in ALWAYS_SEVERAL:
                        wrong.append(f"{path.name}:{node.lineno}: {{{given}}}{str(text.value)[:20]}")
    assert not wrong
