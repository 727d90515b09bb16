"""A habit is what its formula says, of whole matrices and of single pairs, whatever the mask."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard import attend, causal, watch
from regard.seeing import habit
from regard.seeing.patterns import link_table, strongest_links


def written_out(w: torch.Tensor, seen: torch.Tensor, distances: bool) -> torch.Tensor:
    """max(K, O) by its definition, pair by pair, in float64."""
    heads, queries, keys = w.shape
    out = torch.zeros(heads, queries, keys, dtype=torch.float64)
    for head in range(heads):
        for i, j in seen.nonzero().tolist():
            key = [float(w[head, x, j]) for x in range(queries) if x != i and seen[x, j]]
            apart = [x for x in range(queries) if x != i and 0 <= x + j - i < keys and seen[x, x + j - i]]
            near = [float(w[head, x, x + j - i]) for x in apart] if distances else []
            out[head, i, j] = max(sum(key) / max(1, len(key)), sum(near) / max(1, len(near)))
    return out


@pytest.mark.parametrize("distances", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_formula(monkeypatch: pytest.MonkeyPatch, is_causal: bool, distances: bool) -> None:
    monkeypatch.setattr(habit, "CELLS", 100)  # several blocks of rows
    torch.manual_seed(0)
    q, k = (3 * torch.randn(2, 11, 8, dtype=torch.float64) for _ in range(2))
    _, weights = attend(q, k, k, mask=causal() if is_causal else None, weights=True)
    w = weights.tile(slice(None), slice(None))
    seen = torch.ones(11, 11).tril() > 0 if is_causal else torch.ones(11, 11) > 0
    expected = written_out(w, seen, distances)
    assert torch.allclose(habit.habit(weights, distances), expected, atol=1e-12)
    i, j = seen.nonzero().T
    found = habit.Habits.of(weights, distances).of_pairs(w[:, i, j], i, j)
    assert torch.allclose(found, expected[:, i, j], atol=1e-12)


def test_a_favourite_word_and_a_favourite_distance_do_not_lead_the_list() -> None:
    """Head 0 gives 0.6 to key 3 from everywhere, head 1 looks one place back; head 2 looks at one word once."""
    length = 8
    e = torch.zeros(1, 3, length, length)
    e[0, 0, :, 3] = 2.5
    e[0, 1] = torch.diag(torch.full((length - 1,), 6.0), -1)
    e[0, 2, 6, 1] = 4.0

    class Model(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, torch.eye(length).expand_as(q), torch.ones_like(q), scale=1.0)

    model = Model()
    with watch(model) as seen:
        model(e)
    first = strongest_links(seen, 3)[0]
    assert (first.head, first.query, first.key) == (2, 6, 1)
    assert first.surplus == pytest.approx(first.weight - first.habit)
    assert "from any word here" in [column.header for column in link_table(seen).columns]


def test_heads_with_masks_of_their_own() -> None:
    x, mask = torch.randn(1, 2, 6, 8), torch.stack([torch.ones(6, 6).tril(), torch.ones(6, 6)]).bool()[None]
    _, w = attend(x, x, x, mask=mask, weights=True)
    torch.testing.assert_close(habit.habit(w[0])[1], habit.habit(w[0, 1:2])[0])
