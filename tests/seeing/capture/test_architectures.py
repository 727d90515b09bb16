"""Tiny models of architectures of many kinds: exact and proved, or named with the reason.

`python -m benchmarks.watch_architectures` runs all of Transformers' model mapping; here is one of each kind.
"""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="needs transformers")

from benchmarks.watch_architectures import examine, page

pytestmark = pytest.mark.filterwarnings("ignore")

KINDS = {
    "bloom": "proved",  # written out, heads merged with the batch
    "big_bird": "proved",  # written out
    "hiera": "proved",  # five axes
    "longt5": "proved",  # blocks of five axes
    "deepseek_v4": "proved",  # a softmax that mixes streams is no attention
    "granite_swa": "proved, returned otherwise",  # a sink applied to the output
    "longformer": "named",  # a window, multiplied by diagonals
    "jamba": "named",  # state-space layers
    "yoso": "named",  # hashes instead of a softmax
}


@pytest.mark.parametrize("name", KINDS)
def test_an_architecture_of_each_kind_is_proved_or_named(name: str) -> None:
    row = examine(name)
    assert row["verdict"] == KINDS[name], row
    assert (row["verdict"] == "proved") == (not row["reason"])


def test_the_page_counts_verdicts_and_gives_reasons() -> None:
    rows = [
        {"architecture": "a", "verdict": "proved", "calls": "2", "returned": "2", "reason": "", "memory": "linear"},
        {
            "architecture": "b",
            "verdict": "named",
            "calls": "1",
            "returned": "1",
            "reason": "x | y",
            "memory": "exponent 1.9: a bias",
        },
        {
            "architecture": "c",
            "verdict": "not built",
            "calls": "0",
            "returned": "0",
            "reason": "needs timm",
            "memory": "",
        },
    ]
    text = page(rows)
    assert "of which 2 could be built" in text
    assert "| b | 1 | x \\| y |" in text
    assert "linearly with queries and keys in 1 of 2 architectures" in text
    assert "| b | exponent 1.9: a bias |" in text
