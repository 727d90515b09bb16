"""FSDP learns what one process learns, though the training step calls `backward` itself.

PyTorch refuses FSDP on a CPU unless it is told the device, and Lightning does not tell it; the script does. Two
processes end with a segmentation fault inside PyTorch there (gloo, torch 2.13), so there is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("pytorch_lightning")

from regard.models import EncoderDecoder
from regard.training import fit
from regard.training.recipe import recipe_loader
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = {"shortest": 5, "longest": 5, "rows": 60}
SETTINGS = [
    "encoder.dropout=0.0",
    "decoder.dropout=0.0",
    "training.updates=5",
    "training.save_every=2",
    "training.validate_every=4",
    "training.clip=0.5",
    "training.rate=0.003",
]
SCRIPT = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
original = FullyShardedDataParallel.__init__
def on_cpu(self, *arguments, **options):
    original(self, *arguments, **{**options, "device_id": torch.device("cpu")})
FullyShardedDataParallel.__init__ = on_cpu
from regard.cli import main
if __name__ == "__main__":
    main()
"""


def assert_close(run: Path, other: Path) -> None:
    """Equal up to the order in which float32 sums were taken."""
    assert len(measured(run)) == len(measured(other)) == 5 + 2
    for mine, theirs in zip(measured(run), measured(other), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a, b) == ("", "") or abs(float(a) - float(b)) <= 1e-5 * abs(float(b)), (mine, theirs)
    expected = EncoderDecoder.from_pretrained(other / "model").state_dict()
    for name, tensor in EncoderDecoder.from_pretrained(run / "model").state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


def test_sharded_parameters_learn_the_same(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    file = recipe_file(tmp_path, **LENGTHS)
    fit(recipe_loader.load_recipe(file, [*SETTINGS, "training.tokens=120"]), tmp_path / "plain")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ["training.tokens=120", "training.strategy=fsdp"]
    command = [sys.executable, str(script), "train", str(file), *SETTINGS, *options, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert_close(tmp_path / "run", tmp_path / "plain")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_sharded_parameters_learn_the_same_on_a_gpu(tmp_path: Path, precision: str) -> None:
    if not torch.cuda.is_available():
        pytest.fail("this test needs a CUDA device")
    file = recipe_file(tmp_path, **LENGTHS)
    common = [*SETTINGS, "training.tokens=120", "training.accelerator=cuda", f"training.precision={precision}"]
    common.append("training.graphs=false")
    fit(recipe_loader.load_recipe(file, common), tmp_path / "plain")
    command = [sys.executable, "-m", "regard", "train", str(file), *common, "training.strategy=fsdp"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    tolerance = 1e-3 if precision == "32-true" else 2e-2
    for mine, theirs in zip(measured(tmp_path / "run"), measured(tmp_path / "plain"), strict=True):
        for a, b in zip(mine[2:4], theirs[2:4], strict=True):
            assert (a, b) == ("", "") or abs(float(a) - float(b)) <= tolerance * abs(float(b)), (mine, theirs)
