"""What the results of validations mean: which is the best, and when patience is over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.models.pretrained import snapshot_files
from regard.training import fit, recipe_files
from regard.training.loop import Training, ValidationState, is_better
from regard.training.recipe_sections import TrainingSection
from regard.training.tasks import TranslateTask
from tests.support.tiny_training import recipe_file

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = TrainingSection(patience=2, hold=2)


def test_equal_scores_are_judged_by_their_loss() -> None:
    state = ValidationState()
    assert state.add(350, 100.0, 0.383, SETTINGS)
    assert state.add(400, 100.0, 0.369, SETTINGS)
    assert not state.add(450, 100.0, 0.369, SETTINGS)
    assert (state.best_update, state.best_loss, state.poor, state.since_cut) == (400, 0.369, 1, 1)
    assert not state.add(500, 99.0, 0.1, SETTINGS)
    assert state.patience_is_over(SETTINGS)
    assert state.add(550, 101.0, 0.9, SETTINGS), "a higher score is better, whatever its loss"


def test_a_best_score_whose_loss_is_not_known_stays() -> None:
    """Checkpoints of earlier versions have no losses."""
    state = ValidationState(best=100.0, best_update=350, last=100.0, last_update=350)
    assert not state.add(400, 100.0, 0.369, SETTINGS)
    assert state.best_update == 350
    assert not is_better((100.0, math.nan), (100.0, 0.4))
    assert not is_better((100.0, 0.4), (100.0, math.nan))


def equal_scores(self: Any, answers: list[str], pairs: Any, nll: float) -> float:
    return 100.0


def losses(run: Path) -> dict[int, float]:
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()[1:]]
    return {int(row[0]): float(row[6]) for row in rows if row[6]}


@pytest.mark.parametrize("killed", [False, True], ids=["straight", "resumed"])
def test_the_checkpoint_with_the_lowest_loss_is_kept_of_equal_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], killed: bool
) -> None:
    """The rate is so high that the loss gets worse in the end; the same after a resumption."""
    torch.set_num_threads(1)
    monkeypatch.setattr(TranslateTask, "score", equal_scores)
    settings = ["training.updates=12", "training.validate_every=2", "training.save_every=2", "training.average=2"]
    recipe = recipe_files.load_recipe(recipe_file(tmp_path), [*settings, "training.rate=0.2", "search.beams=1"])
    if killed:
        save = Training.save

        def ends(module: Training) -> None:
            save(module)
            if module.update == 8:
                raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(Training, "save", ends)
            with pytest.raises(RuntimeError, match="killed"):
                fit(recipe, tmp_path / "run")
    run = fit(recipe, tmp_path / "run", resume=killed)
    by_update = losses(run.folder)
    lowest = min(by_update, key=lambda update: by_update[update])
    standing = torch.load(run.last, weights_only=True)["regard"]["standing"]
    assert (standing["best_update"], standing["best_loss"]) == (lowest, by_update[lowest])
    assert int(snapshot_files(run.checkpoints, "best")[-1].stem.split("-")[1]) == lowest
    said = " ".join(capsys.readouterr().out.split())
    assert "averaged: BLEU 100.00, loss " in said
    assert f"best single: BLEU 100.00, loss {by_update[lowest]:.3f}" in said
