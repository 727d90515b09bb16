"""The optimizer: fused on a CPU too, with the updates of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.training.optimizer import make_optimizer
from regard.training.recipe_sections import TrainingSection


def test_updates_are_those_of_the_formula() -> None:
    settings = TrainingSection(rate=0.01, betas=[0.9, 0.98], decay=0.1)
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(40, 30, generator=generator))
    start = parameter.detach().double()
    optimizer = make_optimizer([[parameter]], settings)
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
    optimizer = make_optimizer([[parameter]], TrainingSection())
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert bool((parameter.detach() != 1).all())


@pytest.mark.parametrize(
    ("columns", "fused"), [(slice(None), True), (slice(0, 3), False), (slice(None, None, 2), False)]
)
def test_a_parameter_with_gaps_is_updated_and_the_gaps_are_not(columns: slice, fused: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    storage = torch.randn(5, 4, 8, generator=generator).transpose(0, 1)
    before, seen = storage.clone(), torch.zeros_like(storage, dtype=torch.bool)
    seen[..., columns] = True
    optimizer = make_optimizer(
        [[parameter := nn.Parameter(storage[..., columns])]], TrainingSection(rate=0.01, decay=0.0)
    )
    assert optimizer.defaults["fused"] is fused
    (parameter * torch.randn(parameter.shape, generator=generator)).sum().backward()
    optimizer.step()
    # The first step of Adam is the rate times the sign of the gradient.
    torch.testing.assert_close((storage - before).abs(), 0.01 * seen, atol=1e-5, rtol=0.0)


def test_a_state_saved_before_the_optimizer_was_fused_goes_on_as_it_was() -> None:
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(6, 7, generator=generator), torch.randn(4, 6, 7, generator=generator)
    settings = TrainingSection(rate=0.01, decay=0.1)

    def unfused(parameter: nn.Parameter) -> torch.optim.AdamW:
        options = {"lr": settings.rate, "eps": 1e-9, "weight_decay": settings.decay}
        return torch.optim.AdamW([parameter], betas=tuple(settings.betas), fused=False, **options)

    def update(optimizer: torch.optim.AdamW, parameter: nn.Parameter, part: torch.Tensor) -> None:
        for gradient in part:
            parameter.grad = gradient.clone()
            optimizer.step()

    whole, resumed = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    before, after = unfused(whole), unfused(resumed)
    update(before, whole, gradients)
    update(after, resumed, gradients[:2])
    again = make_optimizer([[resumed]], settings)
    again.load_state_dict(after.state_dict())
    update(again, resumed, gradients[2:])
    torch.testing.assert_close(resumed, whole, rtol=0.0, atol=0.0)
