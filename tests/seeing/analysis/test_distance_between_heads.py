"""Jensen–Shannon distances between heads, and the map in the plane."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.analysis import classical_scaling, head_distances
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
