"""results.json: scores belong to the weights that they are of."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from regard.models.saved_weights import weights_sha256
from regard.training import Run, recipe_files
from regard.training.evaluation import TaskEvaluation
from regard.training.results import (
    MAX_LABELS,
    compare,
    evaluation_tables,
    load_results,
    run_tables,
    save_result,
)
from regard.training.scores import LabelScore

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("sacrebleu", reason="needs the extra `train`")


def evaluation(value: float) -> TaskEvaluation:
    return TaskEvaluation("classify", 4, {"accuracy": value})


def write_model(folder: Path, number: float) -> str:
    """Weights, and what tells them from others."""
    folder.mkdir(parents=True)
    (folder.parent / "recipe.toml").write_text("[data]\n")
    save_file({"weight": torch.full((2,), number)}, folder / "model.safetensors")
    return weights_sha256(folder / "model.safetensors")


def scores(run: Path, *others: Path) -> tuple[list[tuple[str, str, float]], list[str]]:
    remarks: list[str] = []
    rows = compare([run, *others], remarks.append)
    return [(row.run, row.data, row.evaluation.values["accuracy"]) for row in rows], remarks


def extend(run: Path, number: float) -> str:
    """The model moves away, and another one takes its place."""
    recipe = recipe_files.load_recipe("mean-opinions")
    Run(run, recipe).extend(recipe, 10)
    return write_model(run / "model", number)


def test_scores_before_an_extension_are_those_of_the_earlier_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save_result(run, "test", evaluation(1), write_model(run / "model", 1))
    save_result(run, "test (update 5)", evaluation(0))
    second = extend(run, 2)
    before = [("run/model-10", "test", 1.0), ("run/model-10", "test (update 5)", 0.0)]
    lacking = f"the model of {run} has not been evaluated; do it with: regard evaluate {run}"
    assert scores(run) == (before, [lacking])
    save_result(run, "test", evaluation(2), second)
    assert load_results(run) == {"test": evaluation(2)}
    assert scores(run) == ([("run", "test", 2.0), *before], [])
    assert sorted(scores(run, run / "model-10")[0]) == sorted(scores(run)[0])
    assert scores(run / "model-10") == (before, [])


def test_scores_of_other_weights_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_model(run / "model", 1)
    save_result(run, "test", evaluation(1), "0" * 64)
    assert load_results(run) == {}
    rows, remarks = scores(run)
    assert rows == []
    assert "has not been evaluated" in remarks[0]


def test_entries_that_this_version_cannot_read_are_kept(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"old": 3}')
    save_result(tmp_path, "test", evaluation(1))
    assert json.loads((tmp_path / "results.json").read_text())["old"] == 3


def printed(labels: int) -> str:
    scores = {f"l{n}": LabelScore(5, None, 40.0, 50.0, {f"l{n}": 2, "l0": 3}) for n in range(labels)}
    evaluation = TaskEvaluation("classify", 5, {"loss": 0.5, "accuracy": 40.0}, "5 texts", {}, scores)
    console = Console(file=io.StringIO(), width=200)
    for table in evaluation_tables("test", evaluation, tokenised=False):
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_few_labels_have_a_confusion_matrix_and_many_are_cut() -> None:
    few, many = printed(2), printed(MAX_LABELS + 1)
    assert few.startswith("test: 5 texts\n")
    assert "0.5000" in few
    assert "–" in few
    assert "by what the model answered" in few
    assert "by what the model answered" not in many
    assert f"all {MAX_LABELS + 1} are in results.json" in many


def test_what_differs_between_runs_and_their_curves(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for run, rate, score in zip(runs, (0.1, 0.2), (3.5, 4.5), strict=True):
        run.mkdir()
        (run / "recipe.toml").write_text(f'name = "{run.name}"\nseed = 1\n[training]\nrate = {rate}\n')
        (run / "metrics.csv").write_text(f"update,valid_nll,valid_bleu\n10,,\n10,2.5,{score}\n20,2.0,{score + 1}\n")
    console = Console(width=100, file=io.StringIO())
    for table in run_tables(runs):
        console.print(table)
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["training.rate", "0.1", "0.2"] in lines
    assert [["10", "3.5", "4.5"], ["20", "4.5", "5.5"]] == lines[-2:]
    assert not any("seed" in line or "name" in line for line in lines)
    assert not list(run_tables(runs[:1]))
