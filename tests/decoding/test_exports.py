"""Exports know the weights that they were made from, and are replaced only by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("ctranslate2", reason="needs the extra `export`")

from regard.commands import app
from regard.decoding import model_folders
from regard.decoding.model_folders import (
    exported_weights,
    is_outdated,
    outdated_exports,
    record_run_exports,
)
from regard.models import load
from regard.models.saved_weights import weights_sha256
from tests.support.small_translators import save_exported_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with an export of an earlier version, which has no record."""
    return save_exported_run(tmp_path / "run-1")


def command(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def train_on(run: Path) -> None:
    """Give the model of a run other weights."""
    model = load(run / "model")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save_pretrained(run / "model")


def test_an_export_of_other_weights_is_refused(run: Path) -> None:
    command("export", str(run), "--force")
    exported = run / "ctranslate2"
    assert exported_weights(exported) == weights_sha256(run / "model" / "model.safetensors")
    assert model_folders.load(run, engine="ctranslate2").run == run
    train_on(run)
    message = rf"ctranslate2 was exported from other weights than .*: regard export {run} --force"
    with pytest.raises(ValueError, match=message):
        model_folders.load(run, engine="ctranslate2")
    assert model_folders.load(exported, engine="ctranslate2").folder == exported, "it is named itself"
    command("export", str(run), "--force")
    model_folders.load(run, engine="ctranslate2")


def test_an_export_without_a_record_is_used_until_its_model_is_replaced(run: Path) -> None:
    (run / "ctranslate2" / "export.json").unlink(missing_ok=True)
    train_on(run)
    model_folders.load(run, engine="ctranslate2")
    record_run_exports(run, run / "model")
    assert not is_outdated(run / "ctranslate2", run / "model")
    train_on(run)
    assert outdated_exports(run, run / "model") == {"ctranslate2": run / "ctranslate2"}
    with pytest.raises(ValueError, match="was exported from other weights"):
        model_folders.load(run, engine="ctranslate2")


def test_a_damaged_record_counts_as_outdated(run: Path) -> None:
    (run / "ctranslate2" / "export.json").write_text("{")
    assert outdated_exports(run, run / "model") == {"ctranslate2": run / "ctranslate2"}
    with pytest.raises(ValueError, match=r"export\.json is not JSON.*export to .*ctranslate2 again"):
        model_folders.load(run, engine="ctranslate2")


def test_force_replaces_an_export_and_nothing_else(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["export", str(run), "--out", str(out)]
    command(*words)
    (out / "left.txt").write_text("of the one before")
    with pytest.raises(ValueError, match=r"out is there already; replace it with --force \(force=True\), or export"):
        command(*words)
    command(*words, "--force")
    assert not (out / "left.txt").exists()
    assert json.loads((out / "export.json").read_text()) == {
        "weights_sha256": weights_sha256(run / "model" / "model.safetensors")
    }
    assert {path.name for path in tmp_path.iterdir()} == {"run-1", "out"}
    other = tmp_path / "letters"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    for place in (other, run / "model"):
        with pytest.raises(ValueError, match="is there already and is no export for ctranslate2"):
            command("export", str(run), "--out", str(place), "--force")
    assert (other / "letter.txt").read_text() == "dear"
