"""A training process that is killed again and again ends with the same weights. `make kills` kills 100 times."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING

import pytest
import torch

from regard.models import EncoderDecoder
from regard.training import fit, recipe_files
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

KILLS = int(os.environ.get("REGARD_KILLS", "4"))
SETTINGS = [
    "training.updates=12",
    "training.save_every=2",
    "training.validate_every=3",
    "training.average=2",
    "search.beams=1",
]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")


def train(file: Path, run: Path) -> int:
    """Train in a process of its own, or resume there; its id. What it writes is in RUN.output."""
    output = os.open(f"{run}.output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = os.fork()
    if child:
        os.close(output)
        return child
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.disable()
        faulthandler.enable(output)
        fit(recipe_files.load_recipe(file, SETTINGS), run, resume=(run / "recipe.toml").exists())
        os._exit(0)
    except BaseException:
        os.write(output, traceback.format_exc().encode())  # sys.stderr is pytest's
    finally:
        os._exit(1)


def test_killed_at_any_moment_it_ends_the_same(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    file = recipe_file(tmp_path, rows=40)
    began = time.monotonic()
    fit(recipe_files.load_recipe(file, SETTINGS), tmp_path / "straight")
    duration = time.monotonic() - began
    expected = EncoderDecoder.from_pretrained(tmp_path / "straight" / "model").state_dict()
    chance, kills, runs = random.Random(0), 0, 0
    while kills < KILLS:
        runs += 1
        run = tmp_path / f"run{runs}"
        while not (run / "model").exists():
            child = train(file, run)
            if kills < KILLS:
                time.sleep(chance.uniform(0, 0.6 * duration))
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            kills += code == -signal.SIGKILL
            output = (tmp_path / f"{run.name}.output").read_text(errors="replace")
            assert code in (0, -signal.SIGKILL), f"it ended with {code} after {kills} kills: {output[-5000:]}"
        assert measured(run) == measured(tmp_path / "straight")
        for name, tensor in EncoderDecoder.from_pretrained(run / "model").state_dict().items():
            assert torch.equal(tensor, expected[name]), name
