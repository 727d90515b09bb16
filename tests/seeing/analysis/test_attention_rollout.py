"""Rollout and flow against matrix products and capacities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from regard.seeing.analysis import flow, rollout
from tests.support.attention_model import random_text, watched

if TYPE_CHECKING:
    import regard


def mixed(seen: regard.Seen) -> list[Tensor]:
    result = []
    for call in seen:
        a = call.weights.dense()[0].mean(0)
        a = a + torch.eye(len(a))
        result.append(a / a.sum(-1, keepdim=True))
    return result


@pytest.mark.parametrize("is_causal", [False, True])
def test_rollout_is_the_product_of_its_layers(is_causal: bool) -> None:
    seen = watched(random_text(25).ids, layers=3, is_causal=is_causal)
    first, second, third = mixed(seen)
    expected = third @ second @ first
    assert torch.allclose(rollout(seen), expected, atol=1e-5)
    assert torch.allclose(rollout(seen, rows=[3, 20]), expected[[3, 20]], atol=1e-5)
    assert torch.allclose(rollout(seen).sum(-1), torch.ones(25), atol=1e-5)


def test_flow_of_one_layer_is_its_capacity_and_of_two_is_bounded() -> None:
    (only,) = mixed(one := watched(random_text(6).ids, layers=1))
    assert torch.allclose(flow(one, 2), only[2], atol=1e-6)
    two = watched(random_text(6).ids, layers=2)
    first, second = mixed(two)
    result = flow(two, 2)
    # Two layers: through each middle token as much as the narrower of its two edges, all at once.
    expected = torch.minimum(second[2][:, None], first).sum(0)
    assert torch.allclose(result, expected, atol=1e-6)
    with pytest.raises(ValueError, match="128 tokens"):
        flow(watched(random_text(200).ids), 0)
