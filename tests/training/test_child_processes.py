"""One command starts two processes, and the second one ends: the first one says so, and how to continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from regard.training.distributed import ending, exit_status
from tests.support.paths import ROOT
from tests.support.process_groups import tiny_transformer

if TYPE_CHECKING:
    from pathlib import Path

HOOK = """
import os, signal, sys
if os.environ.get("LOCAL_RANK") == "1":
    {start}
    from regard.training.loop import Training

    backward = Training.backward

    def ends(self, batches):
        if self.update == 4:
            {update}
        return backward(self, batches)

    Training.backward = ends
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(
    ("start", "update", "message", "status"),
    [
        (KILL, "pass", "regard: process 1 of 2 (counted from 0) ended by SIGKILL before all processes had started", 1),
        (
            "os.kill(os.getpid(), signal.SIGTERM)",
            "pass",
            "regard: process 1 of 2 (counted from 0) ended by SIGTERM before all processes had started",
            143,
        ),
        (
            "raise SystemExit('no such library')",
            "pass",
            "regard: process 1 of 2 (counted from 0) ended with status 1 before all processes had started",
            1,
        ),
        (
            "pass",
            KILL,
            "regard: process 0 of 2 (counted from 0) stopped after update 4, since process 1 of 2 ended by SIGKILL. "
            "Continue from the last checkpoint with: regard train --resume",
            1,
        ),
    ],
    ids=["killed-start", "terminated-start", "failed-start", "killed-update"],
)
def test_the_first_process_says_which_one_ended(
    tmp_path: Path, start: str, update: str, message: str, status: int
) -> None:
    recipe, run = tiny_transformer(tmp_path), tmp_path / "run"
    program = tmp_path / "program.py"
    program.write_text(HOOK.format(start=start, update=update) + "\nfrom regard.cli import main\n\nmain()\n")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in environment.items() if name not in ("LOCAL_RANK", "WORLD_SIZE")}
    command = [sys.executable, program, "train", recipe, "training.devices=2", "--out", run]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    errors = " ".join(done.stderr.split())
    assert message in errors, done.stderr[-3000:]
    assert f"regard train --resume {run}" in errors
    assert done.returncode == status


@pytest.mark.parametrize(
    ("code", "words", "status"),
    [
        (-signal.SIGKILL, "by SIGKILL", 1),
        (-signal.SIGTERM, "by SIGTERM", 128 + signal.SIGTERM),
        (1, "with status 1", 1),
        (130, "with status 130", 130),
        (-99, "by signal 99", 1),
    ],
)
def test_the_status_is_that_of_an_interrupt_or_of_an_error(code: int, words: str, status: int) -> None:
    assert (ending(code), exit_status(code)) == (words, status)
