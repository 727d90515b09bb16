"""Mean effects over texts."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.corpus.exact_sums import ExactSums
from regard.seeing.corpus.mean_effects import add_effects, mean_effects
from regard.seeing.effects.effect_table import Effects
from regard.seeing.effects.row_replacement import Site


def test_the_mean_over_texts_in_the_order_of_layers_and_heads() -> None:
    sites = [Site(layer, head, None, f"layer.{layer}") for layer in (0, 2, 11) for head in range(2)]
    several = [
        Effects("heads", "zero", sites, torch.rand(1).double(), torch.rand(len(sites), 1).double()) for _ in range(5)
    ]
    sums = ExactSums()
    for effects in several:
        add_effects(sums, effects)
    mean = mean_effects(ExactSums.from_state(sums.state()), "zero")
    assert mean.sites == sites
    expected = torch.stack([effects.differences for effects in several]).mean(0)
    torch.testing.assert_close(mean.differences, expected, rtol=0, atol=1e-12)


def test_tokens_have_no_mean() -> None:
    tokens = Effects("tokens", "zero", [Site(token=0)], torch.zeros(1), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="no mean over texts"):
        add_effects(ExactSums(), tokens)
