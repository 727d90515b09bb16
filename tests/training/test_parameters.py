"""The parameters of a model: optimizer, schedule, groups with rates of their own, and their moving average."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from regard.data import TokenizerPair
from regard.models import EncoderDecoder, load
from regard.training import fit, recipe_files
from regard.training.loop import Training
from regard.training.parameters import make_optimizer, rate
from regard.training.recipe_sections import RecipeError, TrainingSection
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path


def test_updates_are_those_of_the_formula() -> None:
    settings = TrainingSection(rate=0.01, betas=[0.9, 0.98], decay=0.1)
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(40, 30, generator=generator))
    start = parameter.detach().double()
    optimizer = make_optimizer([parameter], settings)
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
    optimizer = make_optimizer([parameter], TrainingSection())
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
        [parameter := nn.Parameter(storage[..., columns])], TrainingSection(rate=0.01, decay=0.0)
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
    again = make_optimizer([resumed], settings)
    again.load_state_dict(after.state_dict())
    update(again, resumed, gradients[2:])
    torch.testing.assert_close(resumed, whole, rtol=0.0, atol=0.0)


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


SETTINGS: dict[str, Any] = {"schedule": "constant", "save_every": 2, "average": 1, "accelerator": "cpu"}
BATCHES = list(torch.linspace(-1, 1, 24).reshape(4, 3, 2))


class Layers(nn.Module):
    """Three layers of the same shape, so that nothing but their order tells their moments apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(2, 2) for _ in range(3))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.third(self.second(self.first(batch)).tanh()) ** 2).mean()


def train(folder: Path, *, resume: bool = False, **settings: Any) -> None:
    torch.manual_seed(0)
    fit(Layers(), folder, train=BATCHES, valid=BATCHES, resume=resume, **SETTINGS | settings)


def groups_at_update(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The list that gets the optimizer's groups after each update, with the names of their parameters."""
    groups: list[dict[str, Any]] = []
    step = Training.step

    def record(self: Training, sums: torch.Tensor) -> None:
        step(self, sums)
        names = {parameter: f"model.{name}" for name, parameter in self.model.named_parameters()}
        for group in self.optimizer.param_groups:
            groups.append(group | {"params": [names[each] for each in group["params"]]})

    monkeypatch.setattr(Training, "step", record)
    return groups


def test_a_run_continues_with_another_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, updates=2, rate=0.01)
    groups = groups_at_update(monkeypatch)
    train(tmp_path, updates=3, rate=0.05, resume=True)
    assert [group["lr"] for group in groups] == [pytest.approx(0.05)]


def test_a_run_continues_with_other_betas_and_decay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, updates=2)
    groups = groups_at_update(monkeypatch)
    train(tmp_path, updates=3, decay=0.5, betas=[0.5, 0.6], resume=True)
    assert [(group["weight_decay"], group["betas"]) for group in groups] == [(0.5, (0.5, 0.6))]


EVERY_UPDATE = ["tied=none", "training.save_every=1", "training.average=4", "training.validate_every=2"]


def test_the_average_is_validated_kept_and_resumed(tmp_path: Path) -> None:
    file = recipe_file(tmp_path, rows=60)
    plain = fit(recipe_files.load_recipe(file, [*EVERY_UPDATE, "training.updates=4"]), tmp_path / "plain")
    ema = [*EVERY_UPDATE, "training.ema=0.15", "training.updates=4"]
    straight = fit(recipe_files.load_recipe(file, ema), tmp_path / "straight")
    assert [row[2] for row in measured(plain.folder)] == [row[2] for row in measured(straight.folder)], "it only reads"

    tokenizers = TokenizerPair.load(plain.model)
    torch.manual_seed(plain.recipe.seed)
    average = EncoderDecoder(plain.recipe.writer(len(tokenizers.source), len(tokenizers.target))).state_dict()
    for n in range(1, 5):
        weights = load_file(plain.checkpoints / f"update-{n:08d}.safetensors")
        decay = min(0.15, (1 + n) / (10 + n))  # 0.15 is less from update 1 on
        kept = load_file(straight.checkpoints / f"update-{n:08d}.safetensors")
        for name, tensor in weights.items():
            average[name] = decay * average[name] + (1 - decay) * tensor
            assert torch.allclose(kept[name], average[name], atol=1e-6), (n, name)

    halves = fit(recipe_files.load_recipe(file, [*ema, "training.updates=2"]), tmp_path / "halves")
    fit(recipe_files.load_recipe(file, ema), halves.folder, resume=True)
    for name, tensor in load(halves.model).state_dict().items():
        assert torch.equal(tensor, load(straight.model).state_dict()[name]), name


def test_sharded_parameters_have_no_average() -> None:
    with pytest.raises(RecipeError, match=r"training\.ema averages whole parameters"):
        recipe_files.load_recipe("bahdanau-phrasebook", ["training.ema=0.9", "training.strategy=fsdp"])
