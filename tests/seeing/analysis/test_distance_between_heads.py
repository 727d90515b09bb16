"""Jensen–Shannon distances between heads, and the map in the plane."""

from __future__ import annotations

import pytest
import torch

from regard import Seen
from regard.seeing.analysis import classical_scaling, head_distances, head_matches
from tests.support.attention_model import random_text, watched


def test_distances_between_heads() -> None:
    seen = watched(random_text(12).ids)
    rows = torch.cat([call.weights.dense()[0] for call in seen]) * 0.999 + 0.001 / 12
    result = head_distances(seen)
    assert result.shape == (4, 4)
    middle = (rows[0] + rows[3]) / 2
    kl = [(x * (x / middle).log()).sum(-1) for x in (rows[0], rows[3])]
    assert float(result[0, 3]) == pytest.approx(float(((kl[0] + kl[1]) / 2).mean()), rel=1e-3)
    assert torch.equal(result, result.T)


def test_the_map_keeps_distances_of_points_in_a_plane() -> None:
    points = torch.randn(7, 2)
    apart = torch.cdist(points, points)
    result = classical_scaling(apart)
    assert torch.allclose(torch.cdist(result, result), apart, atol=1e-4)


def test_distances_between_the_heads_of_two_runs() -> None:
    text = random_text(12).ids
    seen, other = watched(text), watched(text)
    result = head_distances(seen, other=other)
    both = [torch.cat([call.weights.dense()[0] for call in each]) * 0.999 + 0.001 / 12 for each in (seen, other)]
    p, q = both[0][1], both[1][2]
    middle = (p + q) / 2
    kl = [(x * (x / middle).log()).sum(-1) for x in (p, q)]
    assert float(result[1, 2]) == pytest.approx(float(((kl[0] + kl[1]) / 2).mean()), rel=1e-3)
    assert torch.allclose(head_distances(other, other=seen), result.T, atol=1e-6)
    with pytest.raises(ValueError, match=r"over one text: .* got 9 × 9 and 12 × 12"):
        head_distances(seen, other=watched(random_text(9).ids))
    with pytest.raises(ValueError, match="a run has no self-attention"):
        head_distances(seen, other=Seen())
    with pytest.raises(ValueError, match="rows is the number of queries to compare, at least 1, got 0"):
        head_distances(seen, rows=0)


def test_each_head_is_matched_with_the_nearest_of_the_other_run() -> None:
    text = random_text(12).ids
    seen = watched(text)
    same = head_matches(seen, seen).columns
    assert same["other layer"] == same["layer"] == [0, 0, 1, 1]
    assert same["other head"] == same["head"] == [0, 1, 0, 1]
    assert same["distance"] == same["same place"] == pytest.approx([0] * 4, abs=1e-6)
    assert same["mutual"] == [True] * 4
    other = watched(text)
    distances, found = head_distances(seen, other=other), head_matches(seen, other).columns
    assert found["distance"] == pytest.approx(distances.amin(1).tolist())
    assert found["same place"] == pytest.approx(distances.diagonal().tolist())
    number = [2 * layer + head for layer, head in zip(found["other layer"], found["other head"], strict=True)]
    assert number == distances.argmin(1).tolist()
    assert found["mutual"] == [int(distances[:, m].argmin()) == n for n, m in enumerate(number)]
