"""`fit` with a model of one's own: it learns, is saved, resumes, and is extended as a recipe's is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

pytest.importorskip("pytorch_lightning")

from safetensors.torch import load_file

from regard.training import fit

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: dict[str, Any] = {
    "rate": 0.05,
    "schedule": "constant",
    "validate_every": 10,
    "save_every": 5,
    "log_every": 1,
    "average": 1,
    "accelerator": "cpu",
    "tensorboard": False,
}


class Line(nn.Module):
    """y = a·x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 1)

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return ((self.map(batch["x"]) - batch["y"]) ** 2).mean()


@pytest.fixture
def batches() -> list[dict[str, torch.Tensor]]:
    x = torch.linspace(-1, 1, 48).reshape(12, 4, 1)
    return [{"x": each, "y": 3 * each + 1} for each in x]


def line() -> Line:
    torch.manual_seed(0)
    return Line()


def test_it_learns_and_is_kept(batches: list[Any], tmp_path: Path) -> None:
    model = line()
    run = fit(model, tmp_path / "run", train=batches, valid=batches[::3], updates=150, **SETTINGS)
    assert model.map.weight.item() == pytest.approx(3, abs=0.1)
    assert model.map.bias.item() == pytest.approx(1, abs=0.1)
    kept = load_file(run.model / "model.safetensors")
    assert torch.equal(kept["map.weight"], model.map.weight)
    rows = (run.folder / "metrics.csv").read_text().splitlines()
    assert rows[0].endswith(",valid_loss")
    assert len(rows) == 1 + 150 + 15
    assert (run.folder / "provenance.json").is_file()


def test_the_first_loss_is_that_of_a_batch(batches: list[Any], tmp_path: Path) -> None:
    run = fit(line(), tmp_path / "run", train=batches, valid=batches, updates=1, **SETTINGS)
    first = float((run.folder / "metrics.csv").read_text().splitlines()[1].split(",")[2])
    assert any(first == pytest.approx(line().loss(batch).item(), rel=1e-5) for batch in batches)


def test_extended_it_is_the_longer_run(batches: list[Any], tmp_path: Path) -> None:
    data = {"train": batches, "valid": batches}
    fit(whole := line(), tmp_path / "whole", **data, updates=20, **SETTINGS)
    fit(half := line(), tmp_path / "halves", **data, updates=10, **SETTINGS)
    assert not torch.equal(half.map.weight, whole.map.weight)
    fit(half := line(), tmp_path / "halves", **data, updates=20, resume=True, **SETTINGS)
    assert torch.equal(half.map.weight, whole.map.weight)


def test_what_is_wrong_is_named_before_anything_is_made(batches: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Linear has no method loss\(batch\)"):
        fit(nn.Linear(1, 1), tmp_path / "run", train=batches, valid=batches)
    with pytest.raises(ValueError, match="batches to train and to validate on; got 12 and 0"):
        fit(line(), tmp_path / "run", train=batches)
    with pytest.raises(ValueError, match="updtes"):
        fit(line(), tmp_path / "run", train=batches, valid=batches, updtes=3)
    assert not (tmp_path / "run").exists()
