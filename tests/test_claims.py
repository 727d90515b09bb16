"""The measurements of benchmarks/claims, at tiny sizes: their tasks are what they say, and the claims show."""

from __future__ import annotations

import torch

from benchmarks.claims import deep_stack, dependency_distance, learning_rates, softmax_gradient
from regard import Dot, ScaledDot


def test_the_last_word_asks_for_a_fact_that_occurs_once() -> None:
    task = dependency_distance
    text, label = task.texts(50, 7, torch.Generator().manual_seed(0))
    name = text[:, -1] - task.QUESTIONS
    assert torch.equal(text[:, -8], task.FACTS + task.VALUES * name + label)
    names = (text[:, :-1] - task.FACTS) // task.VALUES
    assert ((names == name[:, None]).sum(1) == 1).all()


def test_what_a_convolution_does_not_reach_does_not_change_its_answer() -> None:
    config, attends = dependency_distance.ENCODERS["CNN"]
    model = dependency_distance.train(config, attends, updates=1, seed=0)
    text, _ = dependency_distance.texts(4, 12, torch.Generator().manual_seed(0))
    reach = [n for n in range(1, 12) if not torch.equal(model(text), model(_changed(text, n)))]
    assert reach == [1, 2, 3, 4, 5, 6]


def _changed(text: torch.Tensor, distance: int) -> torch.Tensor:
    other = text.clone()
    other[:, -1 - distance] = dependency_distance.FACTS + (other[:, -1 - distance] - dependency_distance.FACTS + 1) % 4
    return other


def test_without_norms_gradients_explode_and_without_both_they_vanish() -> None:
    norms = {name: deep_stack.gradient_norm(12, stack, seed=0) for name, stack in deep_stack.STACKS.items()}
    assert norms["no norm"] > 100 * norms["norm before (pre)"]
    assert norms["neither"] < 0.01 * norms["norm before (pre)"]


def test_only_the_scaled_gradient_survives_width() -> None:
    plain, scaled = (softmax_gradient.gradient_norm(energy, 1024, 50) for energy in (Dot(), ScaledDot()))
    assert plain < 0.5 * scaled
    assert softmax_gradient.gradient_norm(Dot(), 1, 50) == softmax_gradient.gradient_norm(ScaledDot(), 1, 50)


def test_a_rate_that_is_too_large_does_not_learn() -> None:
    good, large = (sum(learning_rates.losses(rate, 60)[-10:]) / 10 for rate in (3e-3, 1.0))
    assert good < large
