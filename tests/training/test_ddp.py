"""Two processes that share the work learn what one learns from the joined batch."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from regard.data import EncodedCorpus, Pair, TokenizerPair
from regard.models import EncoderDecoder
from regard.training import fit, recipe_files
from regard.training.run_batches import UpdateBatches
from regard.training.tasks import recipe_task
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

# Every sentence has 5 words and </s>, so 60 tokens are 10 sentences, and 2 × 60 tokens are the 20 of both processes.
# 110 sentences: the last update of an epoch has fewer. Dropout is each process's own, so there is none.
LENGTHS = {"shortest": 5, "longest": 5, "rows": 110}
SETTINGS = [
    "encoder.dropout=0.0",
    "decoder.dropout=0.0",
    "training.updates=9",
    "training.validate_every=5",
    "training.smoothing=0.1",
    "training.clip=0.5",
    "training.rate=0.003",
]
JOINED, HALF = "training.tokens=120", "training.tokens=60"
# What is registered first is called last.
SCRIPT = """
import atexit
import torch.distributed
from regard.cli import main

# One write: the lines of two processes do not mix.
atexit.register(lambda: print(f"in a group at exit: {torch.distributed.is_initialized()}\\n", end="", flush=True))
if __name__ == "__main__":
    main()
"""


def assert_close(run: Path, other: Path) -> None:
    """Equal up to the order in which float32 sums were taken."""
    assert len(measured(run)) == len(measured(other)) == 9 + 2
    for mine, theirs in zip(measured(run), measured(other), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a, b) == ("", "") or abs(float(a) - float(b)) <= 1e-5 * abs(float(b)), (mine, theirs)
    expected = EncoderDecoder.from_pretrained(other / "model").state_dict()
    for name, tensor in EncoderDecoder.from_pretrained(run / "model").state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, the whole batch at once."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("joined")
    fit(recipe_files.load_recipe(recipe_file(folder, **LENGTHS), [*SETTINGS, JOINED]), folder / "run")
    return folder


def test_two_processes_equal_one(joined: Path, tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text(SCRIPT)
    settings = [*SETTINGS, HALF, "training.devices=2", "training.strategy=ddp"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, script, "train", joined / "tiny.toml", *settings, "--out", tmp_path / "run"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("learning the vocabulary") == 1, "one process prepares, and one speaks"
    assert done.stdout.count("in a group at exit: False") == 2, done.stdout
    assert_close(tmp_path / "run", joined / "run")


def test_accumulating_equals_the_joined_batch(joined: Path, tmp_path: Path) -> None:
    fit(recipe_files.load_recipe(joined / "tiny.toml", [*SETTINGS, HALF, "training.accumulate=2"]), tmp_path / "run")
    assert_close(tmp_path / "run", joined / "run")


@pytest.mark.parametrize(("world", "accumulate"), [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_processes_and_accumulation_take_the_same_pairs(world: int, accumulate: int) -> None:
    pairs = [Pair("a " * (1 + n % 7), "b " * (1 + n % 5), n) for n in range(200)]
    encoded = EncodedCorpus.build(pairs, TokenizerPair.train("word", 10, pairs))

    task = recipe_task(recipe_files.load_recipe("bahdanau-phrasebook", ["training.tokens=24", "data.longest=20"]))

    def rows(world: int, accumulate: int, update: int) -> list[int]:
        seen_rows = []
        for rank in range(world):
            how = {"seed": 3, "rank": rank, "world": world, "fixed_shapes": False}
            batches = UpdateBatches(task, encoded, accumulate=accumulate, **how)[update]  # type: ignore[arg-type]
            assert len(batches) == accumulate
            seen_rows += [row for batch in batches for row in batch.rows.tolist() if row >= 0]
        return sorted(seen_rows)

    length = UpdateBatches(
        task, encoded, accumulate=accumulate, seed=3, rank=0, world=world, fixed_shapes=False
    ).epoch_length
    for update in (0, 1, length - 1, length, 3 * length + 2):
        assert rows(world, accumulate, update) == rows(1, 6, update)
    epoch = [row for update in range(length, 2 * length) for row in rows(world, accumulate, update)]
    assert sorted(epoch) == list(range(200)), "every pair once in an epoch"
