"""What `fit(model, …)` takes as batches: sequences and DataLoaders, which resume to the bit; the rest is refused."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from regard.training import fit
from regard.training.own_model import LoaderBatches, ModelRecipe, ModelTask, numbered_batches
from regard.training.recipe_sections import TrainingSection
from regard.training.run_folder import learning_curve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS: dict[str, Any] = {
    "rate": 0.05,
    "schedule": "constant",
    "validate_every": 5,
    "save_every": 5,
    "log_every": 1,
    "average": 1,
    "accelerator": "cpu",
}


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(1, 1)

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return ((self.map(x) - y) ** 2).mean()


class NoisyRows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows with noise from all three generators, as an augmentation draws it."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((1,), i / 10)
        return x, 3 * x + 1 + torch.randn(1) + random.random() + np.random.rand()  # noqa: NPY002


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(4, 1))


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1])


def rows() -> TensorDataset:
    x = torch.linspace(-1, 1, 10)[:, None]
    return TensorDataset(x, 3 * x + 1)


def batches(source: Any, rank: int = 0, world: int = 1, epoch: int = 0) -> list[Any]:
    task = ModelTask(ModelRecipe(name="line", training=TrainingSection()), Line())
    share = task.batches(source, seed=1, epoch=epoch, rank=rank, world=world, fixed_shapes=False)
    return [share[i] for i in range(len(share))]


def test_a_loader_is_learned_from(tmp_path: Path) -> None:
    model = Line()
    train, valid = DataLoader(rows(), batch_size=4, shuffle=True), DataLoader(rows(), batch_size=5)
    run = fit(model, tmp_path / "run", train=train, valid=valid, updates=150, **SETTINGS)
    assert model.map.weight.item() == pytest.approx(3, abs=0.1)
    mean = torch.stack([model.loss(batch) for batch in valid]).mean().item()
    assert min(loss for _, loss in learning_curve(run.metrics, "valid_loss")) == pytest.approx(mean, abs=1e-6)


def test_without_shuffling_the_order_is_that_of_the_loader() -> None:
    loader = DataLoader(rows(), batch_size=3, drop_last=True)
    for epoch in (0, 1):
        for ours, theirs in zip(batches(numbered_batches(loader, "train"), epoch=epoch), loader, strict=True):
            assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_shuffled_each_epoch_has_every_row_in_an_order_of_its_own() -> None:
    generator = torch.Generator().manual_seed(7)
    state = generator.get_state()
    for own in (None, generator):
        source = numbered_batches(DataLoader(rows(), batch_size=4, shuffle=True, generator=own), "train")
        first, second = (torch.cat([x for x, _ in batches(source, epoch=epoch)]) for epoch in (0, 1))
        assert [len(x) for x, _ in batches(source)] == [4, 4, 2]
        assert not torch.equal(first, second)
        assert torch.equal(first.sort(0)[0], second.sort(0)[0])
        assert torch.equal(first, torch.cat([x for x, _ in batches(source)]))
    assert torch.equal(generator.get_state(), state)


def test_processes_share_what_one_would_make() -> None:
    source = numbered_batches(DataLoader(NoisyRows(), batch_size=2, shuffle=True), "train")
    whole, first, second = (torch.stack([y for _, y in batches(source, *each)]) for each in [(0, 1), (0, 2), (1, 2)])
    assert torch.equal(whole[:4], torch.stack([first[0], second[0], first[1], second[1]]))


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_it_has_the_same_rows_and_noise(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with another number of worker processes, whose random numbers PyTorch draws anew at each start."""

    def train(model: Line, name: str, number: int, **options: Any) -> None:
        loader = DataLoader(NoisyRows(), batch_size=3, shuffle=True, num_workers=number)
        fit(model, tmp_path / name, train=loader, valid=loader, updates=10, **options, **SETTINGS)

    train(straight := Line(), "straight", 0)
    loss, count = Line.loss, iter(range(100))

    def signalled(self: Line, batch: Any) -> torch.Tensor:
        if self.training and next(count) == 6:
            signal.raise_signal(signal.SIGTERM)
        return loss(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Line, "loss", signalled)
        with pytest.raises(SystemExit):
            train(Line(), "resumed", workers)
    assert ModelRecipe.open(tmp_path / "resumed").training.workers == workers
    train(resumed := Line(), "resumed", workers, resume=True)
    assert torch.equal(resumed.map.weight, straight.map.weight)
    losses = [
        [line.split(",")[2] for line in (tmp_path / name / "metrics.csv").read_text().splitlines()]
        for name in ("straight", "resumed")
    ]
    assert losses[0] == losses[1]


def test_a_dataset_of_batches_and_one_that_reads_several_rows_at_once() -> None:
    loader = DataLoader([torch.ones(2), torch.zeros(3)], batch_size=None)  # type: ignore[arg-type]
    assert [len(each) for each in batches(numbered_batches(loader, "train"))] == [2, 3]

    class Table(NoisyRows):
        def __getitems__(self, numbers: list[int]) -> list[int]:
            return numbers

    assert batches(numbered_batches(DataLoader(Table(), batch_size=5), "train"))[1].tolist() == [5, 6, 7, 8, 9]


def test_workers_are_started_as_the_loader_says(tmp_path: Path) -> None:
    loader = DataLoader(rows(), batch_size=5, num_workers=1, worker_init_fn=lambda n: (tmp_path / f"{n}").touch())
    source = numbered_batches(loader, "valid")
    assert isinstance(source, LoaderBatches)
    recipe: Any = ModelRecipe.of_call(tmp_path, 1, {}, loader)
    assert recipe.training.workers == 1
    assert len(list(ModelTask(recipe, Line()).checks(source))) == 2
    assert (tmp_path / "0").exists()


def test_a_tensor_is_a_sequence_of_batches(tmp_path: Path) -> None:
    x = torch.ones(3, 2, 4, 1)  # three batches of x and y
    fit(Line(), tmp_path / "run", train=x, valid=x, updates=1, **SETTINGS)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Any, str]] = {
    "generator": (
        (x for x in [1]),
        r"train is of type generator, and fit takes batches by their .* list\(train\) makes",
    ),
    "dict": ({"x": 1}, "train is of type dict"),
    "stream": (
        DataLoader(Stream()),
        r"DataLoader over Stream, whose rows have no numbers, .* list\(train\) if all",
    ),
    "bare stream": (Stream(), "train is of type Stream"),
    "distributed": (
        DataLoader(rows(), sampler=DistributedSampler(rows(), 2, 0)),
        "a sampler of its own, or one of several processes, .* say shuffle=True",
    ),
    "own iteration": (
        OwnLoader(rows()),
        "train is a DataLoader with an __iter__ or a sampler of its own",
    ),
    "weighted": (DataLoader(rows(), sampler=WeightedRandomSampler([1.0] * 10, 6)), "a sampler of its own"),
    "replacing": (DataLoader(rows(), sampler=RandomSampler(rows(), replacement=True)), "a sampler of its own"),
    "empty": ([], "fit needs batches to train"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_numbers_is_refused_before_the_folder_is_made(name: str, tmp_path: Path) -> None:
    given, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        fit(Line(), tmp_path / "run", train=given, valid=DataLoader(rows()), **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_too_few_batches_for_an_update_are_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    loader = DataLoader(rows(), batch_size=10)
    message = r"an update takes 2 batches \(processes × accumulate\), and train has 1: give more, or lower accumulate"
    with pytest.raises(ValueError, match=message):
        fit(Line(), tmp_path / "run", train=loader, valid=loader, accumulate=2, **SETTINGS)
    assert not (tmp_path / "run").exists()
