"""Schedules of the learning rate."""

from __future__ import annotations

import math

import pytest

from regard.training import recipe_files
from regard.training.optimizer import rate


class TestSchedule:
    def settings(self, *given: str) -> list[float]:
        training = recipe_files.load_recipe("transformer-multi30k", ["training.rate=1.0", *given]).training
        return [rate(training, update) for update in (1, 50, 100, 400, 900)]

    def test_inverse_square_root(self) -> None:
        assert self.settings("training.warmup=100") == pytest.approx([0.01, 0.5, 1.0, 0.5, 1 / 3])

    def test_cosine(self) -> None:
        result = self.settings("training.schedule=cosine", "training.warmup=100", "training.updates=900")
        assert result == pytest.approx([0.01, 0.5, 1.0, 0.5 + 0.5 * math.cos(math.pi * 3 / 8), 0.0], abs=1e-12)

    def test_constant_without_warm_up(self) -> None:
        assert self.settings("training.schedule=constant", "training.warmup=0") == [1.0] * 5
