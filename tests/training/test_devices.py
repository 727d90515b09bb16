"""Devices and processes: launchers, signals, activations that are computed again, and FSDP2 on a GPU."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from regard.models import EncoderDecoder, EncoderDecoderConfig
from regard.training import Run, fit, recipe_files
from regard.training.devices import (
    RESTARTS,
    SIGNALS,
    Processes,
    Signals,
    batch_remark,
    check_processes,
    checkpoint_activations,
    restarted,
)
from regard.training.own_model import ModelData, ModelRecipe, ModelTask
from regard.training.recipe_sections import TrainingSection
from tests.support.paths import ROOT
from tests.support.process_groups import tiny_transformer
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch
from tests.support.tiny_training import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, True),
        ({"SLURM_RESTART_COUNT": "1"}, True),
    ],
)
def test_a_launcher_says_that_it_starts_again(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    for name in RESTARTS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert restarted() is expected


@pytest.mark.parametrize(
    ("changed", "before"),
    [
        ({}, None),
        ({"training.devices": [8, 2], "training.accumulate": [1, 4]}, None),  # 8 × 1 and 2 × 4
        ({"training.devices": [4, 2]}, 16),
        ({"training.nodes": [3, 1]}, 24),
        ({"training.rate": [0.1, 0.2]}, None),
    ],
)
def test_updates_of_another_size_are_remarked(changed: dict[str, Any], before: int | None) -> None:
    remark = batch_remark(TrainingSection(devices=2, accumulate=4), changed)
    assert (remark is None) == (before is None)
    if remark is not None:
        assert remark.startswith(f"an update takes 8 batches from here on, and took {before} so far")


def test_one_process_is_no_plural(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^torchrun started 1 process, .* training\.devices = 2 on each of "):
        check_processes(TrainingSection(devices=2))


def test_several_devices_are_started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"torchrun --standalone --nproc-per-node 2 -m regard train"):
        check_processes(TrainingSection(devices=2))


class WorkerProcess:
    """Batches that hold the number of the process which made them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor(os.getpid())


class Model(nn.Module):
    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.sum()


def test_a_worker_makes_batches_after_a_signal_to_the_process_group(tmp_path: Path) -> None:
    recipe: Any = ModelRecipe(name="signals", training=TrainingSection(workers=1, accelerator="cpu"))
    batches: Any = WorkerProcess()
    data = ModelData(Run(tmp_path, recipe), ModelTask(recipe, Model()), print, batches, batches)
    processes = Processes(recipe.training, "")
    data.load(processes)
    signals = Signals()
    signals.install()
    signals.at_once = False
    try:
        loader = data.loader(0)
        worker: Any = int(next(loader)[0])  # type: ignore[call-overload]
        assert worker != os.getpid()
        for number in SIGNALS:
            os.kill(worker, number)
        for _ in range(6):  # more than were made in advance
            assert int(next(loader)[0]) == worker  # type: ignore[call-overload]
    finally:
        signals.restore()


def model(encoder: str, decoder: str) -> EncoderDecoder:
    torch.manual_seed(7)
    config = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS[encoder], DECODERS[decoder])
    return EncoderDecoder(config)


def test_the_gradients_are_the_same_and_fewer_activations_are_kept() -> None:
    plain = model("Transformer", "Transformer").double()
    for module in plain.modules():
        if hasattr(module, "p"):
            module.p = 0.3
    recomputing = copy.deepcopy(plain)
    checkpoint_activations(recomputing)
    pairs, kept, gradients = batch(sentences=5), [], []
    for each in (plain, recomputing):
        count = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        torch.manual_seed(3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = each.loss(pairs, smoothing=0.1)
        kept.append(count)
        gradients.append(torch.autograd.grad(loss.total, list(each.parameters())))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert kept[1] < 0.5 * kept[0]


def test_a_model_without_transformer_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="is for Transformer layers, and this model has none"):
        checkpoint_activations(model("bidirectional GRU", "Bahdanau"))


@pytest.mark.parametrize("precision", ["64-true", "16-mixed"])
def test_precisions_that_shards_do_not_have_are_refused(tmp_path: Path, precision: str) -> None:
    settings = ["training.strategy=fsdp", f"training.precision={precision}"]
    with pytest.raises(ValueError, match=f'training.precision = "{precision}" does not go with .* "fsdp"'):
        recipe_files.load_recipe(tiny_transformer(tmp_path), settings)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_sharded_parameters_learn_the_same_on_a_gpu(tmp_path: Path, precision: str) -> None:
    if not torch.cuda.is_available():
        pytest.fail("this test needs a CUDA device")
    file = tiny_transformer(tmp_path)
    common = ["training.tokens=120", "training.accelerator=cuda", f"training.precision={precision}"]
    fit(recipe_files.load_recipe(file, [*common, "training.graphs=false"]), tmp_path / "plain")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])  # packages may be carried along
    tolerance = 1e-3 if precision == "32-true" else 2e-2
    for recomputed in ("false", "true"):
        run = tmp_path / f"fsdp-{recomputed}"
        settings = [*common, "training.strategy=fsdp", f"training.activation_checkpointing={recomputed}"]
        command = [sys.executable, "-m", "regard", "train", file, *settings, "--out", run]  # a process group of its own
        environment = {**os.environ, "PYTHONPATH": path, "REGARD_TRACEBACK": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert (run / "checkpoints" / "shards-00000006").is_dir()
        for mine, theirs in zip(measured(run), measured(tmp_path / "plain"), strict=True):
            for a, b in zip(mine[2:4], theirs[2:4], strict=True):
                assert (a, b) == ("", "") or abs(float(a) - float(b)) <= tolerance * abs(float(b)), (mine, theirs)
