"""The largest contributions as rows of a table."""

import torch

from regard import Contributions, attend
from regard.seeing.effects.contribution_table import contribution_table


def test_rows_are_the_largest_contributions() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    out, w = attend(q, k, v, weights=True)
    c = Contributions(w, v, torch.randn_like(out))
    dense = c.dense()
    table = contribution_table(c, 2, queries=list("abcde"), keys=list("ABCDE")).columns
    assert len(table["entry"]) == 2 * 3 * 5 * 2
    rows = zip(*(table[x] for x in ("entry", "head", "query", "key", "contribution")), strict=True)
    for entry, head, query, key, value in rows:
        assert abs(float(dense[entry, head, query, key]) - value) < 1e-6
    assert table["key token"][0] == "ABCDE"[table["key"][0]]
    assert abs(table["contribution"][0]) == float(dense[0, 0, 0].abs().max())


def test_one_head_and_some_queries() -> None:
    q, k, v = (torch.randn(3, 5, 4) for _ in range(3))
    _, w = attend(q, k, v, weights=True)
    c = Contributions(w, v, torch.randn(3, 1, 4))
    table = contribution_table(c[1].rows([4, 2]), 9).columns
    assert list(table) == ["query", "key", "contribution"]
    assert table["query"] == [4] * 5 + [2] * 5
