"""A run that was killed goes on as if it had not been: the same batches, dropout, rates, validations, to the bit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

from regard.commands import app
from regard.models import EncoderDecoder
from regard.training import Run, fit, recipe_files, results
from regard.training.checkpoint import Checkpoints
from regard.training.devices import SIGNALS, Signals
from regard.training.loop import Training
from tests.support.command_line import run_command
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from regard.data import Batch

# Dropout needs the random numbers restored, the plateau the validations, 23 updates of 7 the place in the data.
SETTINGS = [
    "training.updates=23",
    "training.save_every=7",
    "training.validate_every=4",
    "training.schedule=plateau",
    "training.hold=1",
    "training.cut=0.7",
    "training.accumulate=2",
    "training.log_every=3",
]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return EncoderDecoder.from_pretrained(run / "model").state_dict()


def assert_same(run: Path, other: Path) -> None:
    assert measured(run) == measured(other)
    theirs = weights(other)
    for name, tensor in weights(run).items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("straight")
    file = recipe_file(folder)
    fit(recipe_files.load_recipe(file, SETTINGS), folder / "run")
    return folder


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "regard", "train", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell starts what runs in the background with SIGINT ignored, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def reaches(training: subprocess.Popen[str], run: Path, update: int) -> None:
    ending = time.monotonic() + 600
    while not (run / "metrics.csv").exists() or f"\n{update}," not in (run / "metrics.csv").read_text():
        assert training.poll() is None, training.communicate()[0]
        assert time.monotonic() < ending
        time.sleep(0.02)


@contextmanager
def interrupted(sent: signal.Signals) -> Iterator[None]:
    """`fit` ends as Python does after Ctrl-C, and with an exit status after the other signals."""
    with pytest.raises((SystemExit, KeyboardInterrupt)) as left:
        yield
    if sent == signal.SIGINT:
        assert isinstance(left.value, KeyboardInterrupt)
    else:
        assert left.value.code == 128 + sent  # type: ignore[attr-defined]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_what_is_interrupted_is_saved_and_no_success(sent: signal.Signals, straight: Path, tmp_path: Path) -> None:
    """No checkpoint is due before the end, so the only one is that of the interrupt."""
    run = tmp_path / "run"
    settings = [*SETTINGS, "training.updates=100000", "training.save_every=100000"]
    training = start(str(straight / "tiny.toml"), *settings, "--out", str(run))
    reaches(training, run, 3)
    training.send_signal(sent)
    said = training.communicate(timeout=600)[0]
    assert training.returncode == 128 + sent, said
    assert f"interrupted; continue with: regard train --resume {run}" in said
    update = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    assert f"update {update:,} is saved\n" in said


def test_interrupted_and_resumed_is_the_same_to_the_bit(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal arrives in update 10; checkpoints are due at 7, 14 and 21."""
    backward = Training.backward

    def signalled(self: Training, batches: list[Batch]) -> torch.Tensor:
        if self.update == 9 and self.signals.received is None:
            signal.raise_signal(signal.SIGUSR1)
        return backward(self, batches)

    recipe = recipe_files.load_recipe(straight / "tiny.toml", SETTINGS)
    before = [signal.getsignal(number) for number in SIGNALS]
    with monkeypatch.context() as patch:
        patch.setattr(Training, "backward", signalled)
        with pytest.raises(SystemExit) as left:
            fit(recipe, tmp_path / "run")
    assert left.value.code == 128 + signal.SIGUSR1
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert "update 10 is saved" in capsys.readouterr().out
    used = run_command("translate", "--model", str(tmp_path / "run"), "ba de")
    assert (used.returncode, len(used.stdout.splitlines())) == (0, 1)
    assert re.search(r"run is not finished; its best weights so far are used, those of update [48]\.", used.stderr)
    scored = run_command("evaluate", str(tmp_path / "run"), "--split", "valid", "--beams", "1")
    assert scored.returncode == 0
    assert re.fullmatch(r"valid \(update [48]\)", *results.load_results(tmp_path / "run"))
    fit(recipe, tmp_path / "run", resume=True)
    assert "resuming after update 10 of 23" in capsys.readouterr().out
    assert_same(tmp_path / "run", straight / "run")


def test_a_second_signal_ends_it_at_once() -> None:
    signals = Signals()
    signals.install()
    signals.at_once = False
    try:
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        with pytest.raises(SystemExit) as left:
            signal.raise_signal(signal.SIGINT)
    finally:
        signals.restore()
    assert left.value.code == 128 + signal.SIGINT


def test_killed_and_resumed_is_the_same_to_the_bit(straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = start(str(straight / "tiny.toml"), *SETTINGS, "--out", str(run))
    reaches(killed, run, 12)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (run / "model").exists()
    assert (run / "checkpoints" / "last.ckpt").exists()

    resumed = CliRunner().invoke(app, ["train", "--resume", str(run)])
    assert resumed.exit_code == 0, resumed.output
    assert "resuming after update 7 of 23" in resumed.output
    assert len(measured(run)) > len([1 for row in measured(run) if int(row[0]) <= 7]), "it trained on"
    assert_same(run, straight / "run")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("update", [7, 8, 23])
@pytest.mark.parametrize("moment", ["save", "write", "validate", "take"])
def test_wherever_it_dies(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int, moment: str
) -> None:
    """Before the checkpoint, while it is being written, in the validation, between a snapshot and its checkpoint."""
    owner: type = Checkpoints if moment in ("write", "take") else Training
    original = getattr(owner, moment)
    now = [0]

    def dies(self: object, *arguments: object) -> object:
        if moment == "write" and now[0] >= update:
            original(self, *arguments)  # whole, but not yet in its place
            raise Killed
        if now[0] >= update:
            if moment == "take":
                original(self, *arguments)
            raise Killed
        return original(self, *arguments)

    def counts(self: Training, sums: torch.Tensor) -> None:
        step(self, sums)
        now[0] = self.update

    step = Training.step
    recipe = recipe_files.load_recipe(straight / "tiny.toml", SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", counts)
        patch.setattr(owner, moment, dies)
        with pytest.raises(Killed):
            fit(recipe, tmp_path / "run")
    fit(recipe, tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", straight / "run")


def test_what_a_killed_run_left_half_done_is_cleared_away(straight: Path, tmp_path: Path) -> None:
    """Killed while it encoded the corpus: nothing of that counts."""
    recipe = recipe_files.load_recipe(straight / "tiny.toml", SETTINGS)
    run = Run.create(recipe, tmp_path / "run")
    (run.folder / ".data-01ab23cd.unfinished" / "train").mkdir(parents=True)
    (run.folder / ".data-01ab23cd.unfinished" / "tokenizer.source.json").write_text("{")
    (run.checkpoints / ".last.ckpt-01ab23cd.unfinished").write_text("half")
    (run.folder / ".model-01ab23cd.unfinished").mkdir()
    (run.folder / "notes").mkdir()
    (run.folder / "notes" / "thesis.unfinished").write_text("my own")
    fit(recipe, run.folder, resume=True)
    assert_same(run.folder, straight / "run")
    left = [path.name for path in run.folder.rglob("*.unfinished")]
    assert left == ["thesis.unfinished"]
    assert (run.folder / "notes" / "thesis.unfinished").read_text() == "my own"


def test_a_run_goes_on_without_its_corpora(tmp_path: Path) -> None:
    """What it needs of them is in its folder."""
    run = fit(recipe_files.load_recipe(recipe_file(tmp_path), ["training.updates=2"]), tmp_path / "run")
    before = weights(run.folder)
    shutil.rmtree(run.model)
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).unlink()
    fit(run.recipe, run.folder, resume=True)
    for name, tensor in weights(run.folder).items():
        assert torch.equal(tensor, before[name])


def test_a_finished_run_stays_as_it_is(straight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (straight / "run" / "metrics.csv").read_bytes()
    run = Run.open(straight / "run")
    fit(run.recipe, run.folder, resume=True)
    assert "is finished" in capsys.readouterr().out
    assert (straight / "run" / "metrics.csv").read_bytes() == before


def test_a_run_goes_on_with_its_own_recipe_only(straight: Path) -> None:
    with pytest.raises(ValueError, match="seed cannot change in a run that has begun"):
        fit(recipe_files.load_recipe(straight / "tiny.toml", ["seed=9"]), straight / "run", resume=True)


def test_a_checkpoint_is_read_without_running_what_is_in_it(straight: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(straight / "run", copy)
    shutil.rmtree(copy / "model")

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return print, ("this ran",)

    # A forger leaves nothing that would give it away.
    for name in ("checksums.json", "previous.ckpt"):
        (copy / "checkpoints" / name).unlink()
    torch.save({"state_dict": {}, "evil": Evil()}, copy / "checkpoints" / "last.ckpt")
    run = Run.open(copy)
    with pytest.raises(Exception, match=r"last\.ckpt.*(weights_only|Unsupported)"):
        fit(run.recipe, run.folder, resume=True)


def test_a_run_can_be_used_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.training.run_folder import Run, anchored

    monkeypatch.chdir(tmp_path)
    recipe = recipe_files.load_recipe(
        "mean-opinions", ['data.kind="files"', 'data.train=["a.tsv"]', 'data.valid=["a.tsv"]']
    )
    here = recipe.with_settings("data", root=".")
    assert Run.create(anchored(here), tmp_path / "run").recipe.data.root == str(tmp_path)
    assert anchored(recipe).data.root == recipe.data.root  # the environment names it
    assert anchored(recipe_files.load_recipe("mean-opinions")) == recipe_files.load_recipe(
        "mean-opinions"
    )  # nothing on disk


def test_two_trainings_do_not_share_a_folder(straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    training = start(str(straight / "tiny.toml"), *SETTINGS, "training.updates=100000", "--out", str(run))
    try:
        reaches(training, run, 3)
        before = (run / "recipe.toml").read_text(encoding="utf-8")
        recipe = recipe_files.load_recipe(straight / "tiny.toml", SETTINGS)
        with pytest.raises(ValueError, match="another process trains into"):
            fit(recipe, run, force=True)
        with pytest.raises(ValueError, match="another process trains into"):
            fit(recipe_files.load_recipe(run / "recipe.toml"), run, resume=True)
        assert (run / "recipe.toml").read_text(encoding="utf-8") == before
    finally:
        training.kill()
        training.communicate()
    (run / "ctranslate2").mkdir()
    fit(recipe, run, force=True)  # what was killed holds nothing any more
    assert not (run / "ctranslate2").exists(), "an export of another model"


@pytest.mark.parametrize("sent", SIGNALS)
def test_a_signal_while_the_average_is_validated_says_how_to_continue(
    sent: signal.Signals,
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from regard.training import loop

    recipe, run = recipe_files.load_recipe(straight / "tiny.toml", SETTINGS), tmp_path / "run"
    finish = Training.save_final_model

    def validates_and_is_signalled(self: Training) -> None:
        patch.setattr(loop, "validate", lambda *_: signal.raise_signal(sent))
        finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "save_final_model", validates_and_is_signalled)
        with interrupted(sent):
            fit(recipe, run)
    said = capsys.readouterr().out
    assert f"interrupted; continue with: regard train --resume {run}" in said
    assert "nothing is saved yet" not in said
    fit(recipe, run, resume=True)
    assert_same(run, straight / "run")


@pytest.mark.parametrize("sent", SIGNALS)
def test_a_signal_between_the_last_update_and_the_average_counts(
    sent: signal.Signals, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.training.fitting import ProgressBar

    def stops(self: ProgressBar) -> None:
        monkeypatch.undo()
        signal.raise_signal(sent)

    monkeypatch.setattr(ProgressBar, "stop", stops)
    before = signal.signal(sent, lambda *_: None)
    try:
        with interrupted(sent):
            fit(recipe_files.load_recipe(straight / "tiny.toml", ["training.updates=2"]), tmp_path / "run")
    finally:
        signal.signal(sent, before)
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("sent", SIGNALS)
def test_a_signal_after_the_model_is_saved_changes_nothing(
    sent: signal.Signals,
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from regard.training.fitting import ProgressBar

    say = ProgressBar.say

    def signalled(self: ProgressBar, line: str) -> None:
        say(self, line)
        if "Kept" in line:
            signal.raise_signal(sent)

    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr(ProgressBar, "say", signalled)
    run = fit(recipe_files.load_recipe(straight / "tiny.toml", ["training.updates=2"]), tmp_path / "run")
    assert run.model.exists()
    assert "interrupted" not in capsys.readouterr().out
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_signal_while_the_command_shuts_down_is_no_failure(straight: Path, tmp_path: Path) -> None:
    """Functions of `atexit` run last first, so this one is called after the command's own."""
    script = "import atexit, os, signal, sys; from regard.cli import main; "
    script += (
        "atexit.register(lambda: [os.kill(os.getpid(), each) for each in (signal.SIGINT, signal.SIGTERM)]); main()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            "train",
            straight / "tiny.toml",
            "training.updates=2",
            "--out",
            tmp_path / "run",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "model").exists()
