"""Two processes on gloo: DDP and FSDP learn what one process learns, and a run survives another number of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

from safetensors.torch import load_file

from regard.models import EncoderDecoder
from regard.training import fit, recipe_files
from regard.training.checkpoint import read_checkpoint
from tests.support.paths import ROOT
from tests.support.process_groups import ONE, tiny_transformer
from tests.support.tiny_training import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs: `plain` by this process, the others by forks of one helper process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("groups")
    file = tiny_transformer(folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.process_groups", folder]
    how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=environment, cwd=ROOT, **how) as helper:
        fit(recipe_files.load_recipe(file, ONE), folder / "plain")
        try:
            output = helper.communicate(timeout=300)[0]
        except subprocess.TimeoutExpired:
            os.killpg(helper.pid, signal.SIGKILL)
            raise
    assert helper.returncode == 0, output[-5000:]
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


def assert_ended(report: dict[str, Any], group: str, codes: list[int]) -> None:
    """The exit status of each process; the message has what they wrote, where a crash left its stacks."""
    ended = report[group]
    output = "\n".join(f"process {rank} of {group}:\n{text}" for rank, text in enumerate(ended["output"]))
    assert ended["codes"] == codes, f"{ended['codes']}, not {codes}; {ended['errors']}\n{output}"


def assert_as_plain(folder: Path, run: str) -> None:
    """Equal up to the order in which float32 sums were taken."""
    assert len(measured(folder / run)) == len(measured(folder / "plain")) == 6 + 2
    for mine, theirs in zip(measured(folder / run), measured(folder / "plain"), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a, b) == ("", "") or abs(float(a) - float(b)) <= 1e-5 * abs(float(b)), (mine, theirs)
    expected = EncoderDecoder.from_pretrained(folder / "plain" / "model").state_dict()
    for name, tensor in EncoderDecoder.from_pretrained(folder / run / "model").state_dict().items():
        if name.endswith("key_value.bias"):
            # The first half, the bias of the keys, changes no weight: it adds the same number to all energies of a
            # query. Its gradient is rounding alone, which Adam scales up to whole steps.
            tensor, expected[name] = (x[len(x) // 2 :] for x in (tensor, expected[name]))
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


def test_a_process_that_crashes_says_where(report: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=r"(?s)\[-11\], not \[0\].*Segmentation fault.* in crash\n"):
        assert_ended(report, "crashed", [0])


@pytest.mark.parametrize("run", ["ddp", "fsdp", "streamed"])
def test_two_processes_learn_what_one_learns(folder: Path, report: dict[str, Any], run: str) -> None:
    assert_ended(report, "together", [0, 0])
    assert_as_plain(folder, run)


def test_each_process_writes_its_part_of_the_parameters_and_moments(folder: Path) -> None:
    kept = folder / "fsdp" / "checkpoints"
    assert sorted(path.name for path in kept.glob("shards-*")) == ["shards-00000004", "shards-00000006"]
    parts = [load_file(file) for file in sorted((kept / "shards-00000006").iterdir())]
    assert len(parts) == 2
    model = EncoderDecoder.from_pretrained(folder / "fsdp" / "model")
    for name, parameter in model.named_parameters():
        for tensor in (f"model.{name}", f"optimizer.{name}.exp_avg", f"optimizer.{name}.exp_avg_sq"):
            assert sum(part[tensor].numel() for part in parts if tensor in part) == parameter.numel()
    table = "model.decoder.embedding.weight"
    assert all(0 < part[table].shape[0] < model.decoder.embedding.weight.shape[0] for part in parts)
    assert read_checkpoint(kept / "last.ckpt")["state_dict"] == {}


def test_another_number_of_processes_resumes(folder: Path, report: dict[str, Any]) -> None:
    """Two, then one; and one, with activation checkpointing, then two."""
    assert_ended(report, "alone", [0])
    assert_ended(report, "restart", [0, 0])
    assert_as_plain_after_extension(folder, "from-two")
    assert_as_plain_after_extension(folder, "from-one")


def assert_as_plain_after_extension(folder: Path, run: str) -> None:
    """The losses. A run of three updates ends with a validation of its own, and so may keep another checkpoint."""
    losses = [{line[0]: float(line[2]) for line in measured(folder / name) if line[2]} for name in (run, "plain")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(losses[0]) == 6


@pytest.mark.parametrize(("run", "update"), [("killed", 4), ("killed-saving", 2), ("killed-stream", 4)])
def test_a_killed_process_ends_the_other_and_loses_nothing(
    folder: Path, report: dict[str, Any], run: str, update: int
) -> None:
    assert_ended(report, run, [1, -9])
    message = report[run]["errors"][0]
    begin = "LostProcessError: process 0 of 2 (counted from 0) stopped after update 4: "
    assert message.startswith(begin), message
    assert "Where another process ended, see its message" in message
    assert f"regard train --resume {folder / run}" in message
    whole = {"last.ckpt", "checksums.json"}
    if run != "killed-stream":  # DDP: one file has it all
        whole.add(f"shards-{update:08d}")
    assert whole <= set(report[run]["left"])
    assert not any(name.endswith(".unfinished") for name in report[run]["left"])
    assert_ended(report, "restart", [0, 0])
    assert_as_plain(folder, run)


@pytest.mark.parametrize(
    ("run", "sent"),
    [
        ("signalled-update", signal.SIGUSR1),
        ("signalled-last-update", signal.SIGUSR1),
        ("signalled-validation", signal.SIGTERM),
    ],
)
def test_a_signal_to_one_process_ends_all_with_its_status(
    folder: Path, report: dict[str, Any], run: str, sent: signal.Signals
) -> None:
    """The second process has it: in an update, in the last one, and while the average is validated."""
    assert_ended(report, run, [128 + sent] * 2)
    assert f"interrupted; continue with: regard train --resume {folder / run}" in report[run]["output"][0]
    left = report[run]["left"]
    assert "last.ckpt" in left
    assert "model" not in left
    assert not any(name.endswith(".unfinished") for name in left)
    assert_ended(report, "restart", [0, 0])
    assert_as_plain(folder, run)


@pytest.mark.parametrize("run", ["signalled-writing", "signalled-end"])
def test_a_signal_when_only_the_model_is_left_to_write_is_ignored(
    folder: Path, report: dict[str, Any], run: str
) -> None:
    """To the first process, which writes it, and to the second, whose work is done."""
    assert_ended(report, run, [0, 0])
    assert_as_plain(folder, run)


def test_one_process_says_of_which_updates_the_average_is(folder: Path, report: dict[str, Any]) -> None:
    assert_ended(report, "old-listing", [0, 0])
    assert (folder / "old-listing" / "model" / "model.safetensors").is_file()


def test_every_process_has_the_kept_weights_of_a_model_of_ones_own(folder: Path) -> None:
    """The rate is so high that the last weights are not the best."""
    kept = load_file(folder / "own" / "model" / "model.safetensors")
    last = load_file(folder / "own" / "checkpoints" / "update-00000004.safetensors")
    assert not torch.equal(last["model.map.weight"], kept["map.weight"])
    for rank in range(2):
        for name, tensor in load_file(folder / f"own-{rank}.safetensors").items():
            torch.testing.assert_close(tensor, kept[name], rtol=0, atol=0)
