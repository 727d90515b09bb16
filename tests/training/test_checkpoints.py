"""Checkpoints: damage is found by checksums; snapshots of the weights; what a resumed run keeps of metrics.csv."""

from __future__ import annotations

import csv
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.files import DamagedFileError
from regard.models import EncoderDecoder
from regard.training import Run, fit, recipe_files
from regard.training.checkpoint import MEASURES, Checkpoints, MetricsFile
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path


SETTINGS = ["training.updates=6", "training.save_every=2", "training.validate_every=3", "training.average=2"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished")
    return fit(recipe_files.load_recipe(recipe_file(folder, rows=40), SETTINGS), folder / "run").folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Run:
    """A copy without its model, as if it had been interrupted before the end."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    return Run.open(tmp_path / "run")


def flip(file: Path, at: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def assert_same(run: Path, other: Path) -> None:
    assert measured(run) == measured(other)
    expected = EncoderDecoder.from_pretrained(other / "model").state_dict()
    for name, tensor in EncoderDecoder.from_pretrained(run / "model").state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "zeros", "missing", "snapshot", "metrics"])
def test_resuming_falls_back_and_says_so(
    run: Run, finished: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = {
        "snapshot": run.checkpoints / "update-00000006.safetensors",
        "metrics": run.metrics,
    }.get(damage, run.last)
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage in ("flip", "snapshot", "metrics"):
        flip(file, len(content) - 4)  # of metrics.csv, the last line
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "zeros": bytes(len(content))}[damage])
    fit(run.recipe, run.folder, resume=True)
    output = capsys.readouterr().out.replace("\n", "")
    assert "resuming after update 4 of 6" in output
    wrong = "last.ckpt, the newest checkpoint, is missing" if damage == "missing" else f"{file.name} is damaged"
    assert wrong in output
    assert "resuming from the checkpoint before" in output
    assert_same(run.folder, finished)
    # The damaged checkpoint did not take the place of the whole one.
    flip(run.last)
    shutil.rmtree(run.model)
    fit(run.recipe, run.folder, resume=True)
    assert_same(run.folder, finished)


def test_where_both_are_damaged_both_are_named(run: Run) -> None:
    flip(run.last)
    run.previous.write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"last\.ckpt is damaged.*previous\.ckpt is damaged.*train anew"):
        fit(run.recipe, run.folder, resume=True)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x00" * 1000, b"junk" * 1000])
def test_a_checkpoint_without_checksums_is_named_too(run: Run, content: bytes) -> None:
    (run.checkpoints / "checksums.json").unlink()
    run.last.write_bytes(content)
    run.previous.unlink()
    with pytest.raises(DamagedFileError, match=r"last\.ckpt is not a checkpoint that can be read"):
        fit(run.recipe, run.folder, resume=True)


def test_a_run_without_checksums_is_resumed(run: Run, finished: Path) -> None:
    (run.checkpoints / "checksums.json").unlink()
    fit(run.recipe, run.folder, resume=True)
    assert_same(run.folder, finished)


@pytest.mark.parametrize("damage", ["a digest", "not JSON", "empty", "no list"])
def test_a_damaged_list_of_checksums_is_named(run: Run, finished: Path, damage: str) -> None:
    """Without it the checkpoints are read as they are."""
    manifest = run.checkpoints / "checksums.json"
    if damage == "a digest":  # still JSON: it would say that last.ckpt is damaged
        flip(manifest, manifest.read_bytes().rindex(b'"sha256": "', 0, manifest.read_bytes().rindex(b"snapshots")) + 11)
    else:
        manifest.write_text({"not JSON": "{", "empty": "", "no list": '{"checkpoints": 3}'}[damage])
    with pytest.raises(DamagedFileError, match=r"checksums\.json .*remove it to resume without comparing checksums"):
        fit(run.recipe, run.folder, resume=True)
    manifest.unlink()
    fit(run.recipe, run.folder, resume=True)
    assert_same(run.folder, finished)


def test_metrics_that_were_removed_are_no_obstacle(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.metrics.unlink()
    fit(run.recipe, run.folder, resume=True)
    assert "metrics.csv is missing" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("name", ["train/target.bin", "valid.jsonl", "train/encoded.json", "checksums.json"])
def test_damaged_data_is_named(run: Run, name: str) -> None:
    flip(run.data / name)
    with pytest.raises(DamagedFileError, match=rf"{name} is .*remove .*data to prepare"):
        fit(run.recipe, run.folder, resume=True)


class TestSnapshots:
    def test_average_the_window_and_forget_the_future(self, tmp_path: Path) -> None:
        recipe: Any = None
        run = Run(tmp_path, recipe)
        run.checkpoints.mkdir()
        snapshots = Checkpoints(run, window=3)
        shared = torch.zeros(2)
        for update in (1, 2, 3, 4):
            shared.fill_(update)
            snapshots.take(update, {"a": shared, "tied": shared, "count": torch.tensor(update)})
        assert snapshots.updates == [2, 3, 4]
        average = snapshots.average(snapshots.updates)
        assert average["a"].tolist() == average["tied"].tolist() == [3.0, 3.0]
        assert average["a"].dtype == torch.float32
        assert average["count"].item() == 4, "a number that is not learned is the last one's"
        for update in (2, 4):
            snapshots.take(update, {"a": torch.tensor(float(update))}, "best")
        snapshots.forget(3, best=2)
        assert snapshots.average(snapshots.updates)["a"].tolist() == [2.0, 2.0], "the last three up to update 3"
        assert snapshots.best()["a"].item() == 2.0


def test_metrics_drop_what_comes_after_the_checkpoint(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv", "valid_bleu")
    metrics.begin(0)
    for update in (1, 2, 3):
        metrics.write({"update": update, "loss": update / 3})
    with metrics.path.open("a") as file:
        file.write("4,0,0.1")  # a line that a kill cut short
    metrics.begin(2)
    with metrics.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["update"], float(row["loss"])) for row in rows] == [("1", 1 / 3), ("2", 2 / 3)]
    assert tuple(rows[0]) == (*MEASURES, "valid_bleu")
