"""Directions through norms and projections: dot products before and after are the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.seeing.effects.stream_directions import through_norm, through_projection


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6), nn.LayerNorm(6, elementwise_affine=False)])
def test_a_direction_through_a_norm_keeps_its_dot_product(norm: nn.Module) -> None:
    torch.manual_seed(0)
    norm = norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter))
        x, u = torch.randn(2, 4, 6, dtype=torch.float64)
        y = norm(x)
        before, offset = through_norm(norm, x, y, u)
    torch.testing.assert_close((before * x).sum(-1) + offset, (u * y).sum(-1), rtol=1e-6, atol=1e-6)


def test_what_is_no_norm_is_refused() -> None:
    x = torch.randn(2, 6)
    with pytest.raises(ValueError, match="neither a LayerNorm nor a norm by root mean squares"):
        through_norm(nn.Softmax(-1), x, x.softmax(-1), x)


def test_a_direction_through_a_projection_and_its_bias() -> None:
    projection, z, u = nn.Linear(5, 6).double(), torch.randn(3, 5).double(), torch.randn(3, 6).double()
    g, bias = through_projection(projection, 5, u)
    torch.testing.assert_close((g * z).sum(-1) + bias, (u * projection(z)).sum(-1))
