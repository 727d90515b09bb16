"""Tiny models of architectures of many kinds: exact and proved, or named with the reason.

`python -m benchmarks.watch_architectures` runs all of Transformers' model mapping; here is one of each kind.
"""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="needs transformers")

from benchmarks.watch_architectures import MEANINGS, examine, kept, page
from tests.support import tiny_architectures

pytestmark = pytest.mark.filterwarnings("ignore")

KINDS = {
    "bloom": "proved",  # written out, heads merged with the batch
    "big_bird": "proved",  # written out
    "hiera": "proved",  # five axes
    "longt5": "proved",  # blocks of five axes
    "deepseek_v4": "proved",  # a softmax that mixes streams is no attention
    "granite_swa": "proved, returned otherwise",  # a sink applied to the output
    "longformer": "named",  # a window, multiplied by diagonals
    "jamba": "proved",  # its attention; `prove` names the state-space layers
    "yoso": "named",  # hashes instead of a softmax
    "deformable_detr": "named",  # weights over sampled points
    "sew-d": "proved",  # weights set to zero in place
}
SAMPLE = sorted(tiny_architectures.names())[::40]
NEVER = ("WRONG", "wrong, doubted", "CHANGED", "unseen", "doubted", "error")


@pytest.mark.parametrize("name", KINDS)
def test_an_architecture_of_each_kind_is_proved_or_named(name: str) -> None:
    row = examine(name)
    assert row["verdict"] == KINDS[name], row
    assert (row["verdict"] == "proved") == (not row["reason"])


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_all_architectures_is_never_wrong_or_unseen(name: str) -> None:
    row = examine(name)
    assert row["verdict"] in MEANINGS
    assert row["verdict"] not in NEVER, row


def test_the_sweep_found_at_least_300_proved_or_named_and_none_wrong() -> None:
    rows = kept()
    verdicts = [row["verdict"] for row in rows]
    assert sum(verdict.startswith("proved") or verdict == "named" for verdict in verdicts) >= 300
    assert not [row for row in rows if row["verdict"] in NEVER]
    assert all(row["reason"] for row in rows if row["verdict"] in ("named", "not built", "unproven"))


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
