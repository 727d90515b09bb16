"""The optimizer: fused on a CPU too, with the updates of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("pytorch_lightning")

from regard.training.optimization.optimizer import adamw
from regard.training.recipe.recipe_sections import TrainingSection


def test_updates_are_those_of_the_formula() -> None:
    settings = TrainingSection(rate=0.01, betas=[0.9, 0.98], decay=0.1)
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(40, 30, generator=generator))
    start = parameter.detach().double()
    optimizer = adamw([[parameter]], settings)
    assert optimizer.defaults["fused"] is True

    first, second, expected = torch.zeros_like(start), torch.zeros_like(start), start
    for step in range(1, 6):
        gradient = torch.randn(40, 30, generator=generator)
        parameter.grad = gradient.clone()
        optimizer.step()
        first, second = (b * m + (1 - b) * g for b, m, g in ((0.9, first, gradient), (0.98, second, gradient**2)))
        direction = first / (1 - 0.9**step) / ((second / (1 - 0.98**step)).sqrt() + 1e-9)
        expected = expected - 0.01 * 0.1 * expected - 0.01 * direction
    assert (parameter.detach() - expected).abs().max() < 1e-6


def test_complex_parameters_have_no_fused_kernel() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = adamw([[parameter]], TrainingSection())
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert bool((parameter.detach() != 1).all())
