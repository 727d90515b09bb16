"""The groups of the optimizer, in a run that continues with another rate, decay or betas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from regard.training import fit
from regard.training.loop import Training
from regard.training.optimizer import parameter_groups, rate_share
from regard.training.recipe_sections import TrainingSection

if TYPE_CHECKING:
    from pathlib import Path

PARTS = {"model.second": 0.02, "model.first": 0.05}
SETTINGS: dict[str, Any] = {
    "schedule": "constant",
    "save_every": 2,
    "average": 1,
    "accelerator": "cpu",
    "tensorboard": False,
    "part_rates": PARTS,
}
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


def test_the_longest_name_decides_and_equal_rates_are_not_merged() -> None:
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})})
    model["output"] = nn.Linear(1, 1)
    settings = TrainingSection(rate=0.1, part_rates={"encoder": 0.1, "encoder.b": 0.1, "output": 0.2})
    groups = parameter_groups(model, settings)
    sizes = {part: [id(each) for each in parameters] for part, parameters in groups.items()}
    assert sizes == {
        "encoder": [id(each) for each in model["encoder"]["a"].parameters()],  # type: ignore[index]
        "encoder.b": [id(each) for each in model["encoder"]["b"].parameters()],  # type: ignore[index]
        "output": [id(each) for each in model["output"].parameters()],
    }
    assert [rate_share(part, settings) for part in groups] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("rates", [(0.01, 0.05), (0.05, 0.01), (0.02, 0.03)])
def test_a_run_continues_with_another_rate(
    rates: tuple[float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the rate of the rest becomes, or was, that of a part."""
    train(tmp_path, updates=2, rate=rates[0])
    groups = groups_at_update(monkeypatch)
    train(tmp_path, updates=3, rate=rates[1], resume=True)
    assert [(group["params"][0].split(".")[-2], group["lr"]) for group in groups] == [
        ("third", pytest.approx(rates[1])),
        ("first", pytest.approx(0.05)),
        ("second", pytest.approx(0.02)),
    ]


def test_a_run_continues_with_other_betas_and_decay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, updates=2)
    groups = groups_at_update(monkeypatch)
    train(tmp_path, updates=3, decay=0.5, betas=[0.5, 0.6], resume=True)
    assert [(group["weight_decay"], group["betas"]) for group in groups] == [(0.5, (0.5, 0.6))] * 3
