"""Effects of a model that changes its activations in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.seeing.analysis import effects
from tests.support.small_language_models import CLEAN, CORRUPTED


class InPlaceAttention(nn.Module):
    """Attention whose output is scaled, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.project = in_place, nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v)
        if self.in_place:
            z *= 3
        else:
            z = z * 3
        return z.transpose(1, 2).flatten(2)


class InPlaceLayer(nn.Module):
    """A layer that adds to its input, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.attention, self.feed = in_place, InPlaceAttention(in_place), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            x += self.attention(x)
            x += self.feed(x).tanh()
            return x
        x = x + self.attention(x)
        return x + self.feed(x).tanh()


class InPlaceModel(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place = in_place
        self.embedding, self.layers = nn.Embedding(40, 8), nn.ModuleList(InPlaceLayer(in_place) for _ in range(3))
        self.double()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.in_place:
            x *= 2
        else:
            x = x * 2
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("exact", [None, 2])
@pytest.mark.parametrize(("of", "by"), [("heads", "zero"), ("heads", "mean"), ("layers", "patch"), ("tokens", "patch")])
def test_a_model_that_works_in_place_has_the_effects_of_one_that_does_not(of: Any, by: Any, exact: int | None) -> None:
    results = []
    for in_place in (True, False):
        model = InPlaceModel(in_place).requires_grad_(False)
        corrupted = CORRUPTED if by == "patch" else None
        options: dict[str, Any] = {"of": of, "by": by, "corrupted": corrupted, "exact": exact, "rows": 6}
        results.append(effects(model, CLEAN, lambda out: out[..., 0].sum(1), **options))
    torch.testing.assert_close(results[0].base, results[1].base)
    torch.testing.assert_close(results[0].values, results[1].values, equal_nan=True)
    if exact is not None:
        torch.testing.assert_close(results[0].estimates, results[1].estimates)


def test_a_model_that_works_in_place_in_inference_mode() -> None:
    results = []
    for in_place in (True, False):
        with torch.inference_mode():
            results.append(effects(InPlaceModel(in_place), CLEAN, lambda out: out[..., 0].sum(1), rows=6))
    torch.testing.assert_close(results[0].values, results[1].values)
