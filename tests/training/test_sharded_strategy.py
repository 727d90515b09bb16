"""FSDP2 on a GPU, one process: what is learned without it, with and without activation checkpointing.

test_process_groups.py has FSDP2 with two processes on a CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from regard.training import fit, recipe_files
from tests.support.paths import ROOT
from tests.support.process_groups import tiny_transformer
from tests.support.tiny_training import measured

if TYPE_CHECKING:
    from pathlib import Path


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
