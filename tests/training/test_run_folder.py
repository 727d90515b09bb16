"""Points of metrics.csv."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

from regard.commands import app
from regard.decoding.model_folders import outdated_exports
from regard.models import load
from regard.training import fit, recipe_files, results
from regard.training.run_folder import Run, commit, learning_curve
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_without_a_finite_value_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("update,nll,valid_nll\n10,2.5,\n20,nan,\n20,,1.5\n", encoding="utf-8")
    assert learning_curve(file, "nll") == [(10, 2.5)]
    assert learning_curve(file, "valid_nll") == [(20, 1.5)]
    with pytest.raises(ValueError, match="has no column bleu"):
        learning_curve(file, "bleu")


def test_a_run_and_its_card_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = recipe_file(tmp_path, rows=60)
    monkeypatch.setattr("sys.argv", ["/usr/bin/regard", "train", "tiny.toml", "training.updates=2"])
    monkeypatch.setenv("REGARD_TEST", "here")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    run = fit(recipe_files.load_recipe(file, ["training.updates=2"]), tmp_path / "run")
    text = (run.folder / "provenance.json").read_text(encoding="utf-8")
    values = json.loads(text)
    session = values["sessions"][0]
    assert session["command"] == "regard train tiny.toml training.updates=2"
    assert session["versions"]["torch"] == torch.__version__
    assert {"python", "regard", "torch"} <= session["versions"].keys()
    assert session["environment"]["variables"]["REGARD_TEST"] == "here"
    assert "hidden" not in text
    digest = hashlib.sha256((tmp_path / "train.tsv").read_bytes()).hexdigest()
    assert values["data"]["train.tsv"] == digest
    card = (run.model / "README.md").read_text(encoding="utf-8")
    assert "    regard train tiny.toml training.updates=2\n" in card
    assert f"- `train.tsv` {digest[:16]}…" in card
    assert f"torch {torch.__version__}" in card


def test_secrets_stay_out_of_a_run_and_of_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name: in the environment, on the command line, in a URL."""
    for name in ("REGARD_TOKEN", "HF_TOKEN", "REGARD_DB_PASSWORD", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"leak-{name.lower()}")
    monkeypatch.setenv("REGARD_DATA", "https://me:leak-password@example.org/data?token=leak-query&page=2")
    arguments = ["data.name=https://hub/x?api_key=leak-key", "--token", "leak-argument", "--hf-token=leak-other"]
    elsewhere = ["a=leak-hf_token", "training.tokens=300", "--tokens", "40"]  # the value of a variable; no secrets
    monkeypatch.setattr("sys.argv", ["regard", "train", "tiny.toml", *arguments, *elsewhere])
    recipe = recipe_files.load_recipe(recipe_file(tmp_path, rows=60), ["training.updates=2"])
    run = fit(replace(recipe, about="of https://me:leak-about@example.org"), tmp_path / "run")
    for file in run.folder.rglob("*"):
        if file.is_file() and file.name != "recipe.toml":  # what the user wrote
            assert b"leak-" not in file.read_bytes(), file
    session = json.loads((run.folder / "provenance.json").read_text(encoding="utf-8"))["sessions"][0]
    assert session["environment"]["variables"]["REGARD_DATA"] == "https://***@example.org/data?token=***&page=2"
    assert session["command"] == (
        "regard train tiny.toml 'data.name=https://hub/x?api_key=***' --token *** --hf-token=*** a=*** "
        "training.tokens=300 --tokens 40"
    )


def test_the_commit_is_that_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "below").mkdir()
    assert commit(tmp_path / "below") is None, "no repository"
    git("init", "--quiet")
    assert commit(tmp_path) is None, "no commit"
    git("commit", "--quiet", "--allow-empty", "-m", "x")
    assert commit(tmp_path / "below") == git("rev-parse", "HEAD").strip()


def test_a_repository_runs_no_command_for_its_commit(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    planted = f"touch {tmp_path}/ran"
    with (tmp_path / ".git" / "config").open("a") as file:
        file.write(f'[core]\n\tfsmonitor = "{planted}"\n\tpager = "{planted}"\n\tsshCommand = "{planted}"\n')
    commit(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("head", [b"ref: ../../secret\n", b"ref: refs/heads/link\n", b"TOP SECRET", b"\xff\xfe"])
def test_a_repository_cannot_have_another_file_recorded_as_its_commit(tmp_path: Path, head: bytes) -> None:
    subprocess.run(["git", "init", "--quiet", "project"], cwd=tmp_path, check=True)
    git = tmp_path / "project" / ".git"
    for folder in (tmp_path, git):
        (folder / "secret").write_text("TOP SECRET")
    (git / "refs" / "heads" / "link").symlink_to(tmp_path / "secret")
    (git / "HEAD").write_bytes(head)
    assert commit(tmp_path / "project") is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished")
    fit(recipe_files.load_recipe(recipe_file(folder), ["training.updates=10", "training.average=2"]), folder / "run")
    return folder


def resume(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["train", "--resume", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_an_extended_run_is_the_longer_run(finished: Path, tmp_path: Path) -> None:
    """At a constant rate: 10 updates and then 10 more are 20 updates, to the bit."""
    settings = ["training.updates=20", "training.average=2"]
    longer = fit(recipe_files.load_recipe(finished / "tiny.toml", settings), tmp_path / "longer")
    shutil.copytree(finished / "run", tmp_path / "run")
    said = resume(str(tmp_path / "run"), "training.updates=20")
    assert "training.updates: 10 becomes 20" in said
    assert "resuming after update 10 of 20, at a rate of 0.01" in said
    assert measured(tmp_path / "run") == measured(longer.folder)
    expected = load(longer.model).state_dict()
    for name, tensor in load(tmp_path / "run" / "model").state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    earlier = load(tmp_path / "run" / "model-10").state_dict()
    assert not torch.equal(earlier["decoder.output.weight"], expected["decoder.output.weight"])
    assert Run.open(tmp_path / "run").recipe == longer.recipe
    sessions = json.loads((tmp_path / "run" / "provenance.json").read_text())["sessions"]
    assert [(each["after_update"], each["changed"]) for each in sessions] == [
        (0, {}),
        (10, {"training.updates": [10, 20]}),
    ]


def test_patience_begins_anew(finished: Path, tmp_path: Path) -> None:
    settings = ["training.rate=1e-12", "training.validate_every=1", "training.patience=2", "training.updates=9"]
    run = fit(recipe_files.load_recipe(finished / "tiny.toml", settings), tmp_path / "run")
    assert int(measured(run.folder)[-1][0]) == 3
    resume(str(run.folder), "training.updates=8")
    assert int(measured(run.folder)[-1][0]) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["encoder.width=24"], "encoder.width cannot change in a run that has begun: it decides what the model is"),
        (["seed=3"], "it is 1, and 3 was given. The other keys of [training] and [search] can change"),
        (["training.freeze=['encoder']"], "training.freeze cannot change in a run that has begun: the optimizer's"),
        (
            ["training.strategy=ddp"],
            "training.strategy cannot change in a run that has begun: it decides in which form checkpoints are",
        ),
        (["training.updates=4"], "the run is at update 10, and training.updates = 4 is less: raise it"),
        (["data.train=['more.tsv']"], "data.train cannot change in a run that has begun: a run has one corpus"),
    ],
)
def test_what_cannot_change_is_named_and_changes_nothing(finished: Path, settings: list[str], message: str) -> None:
    before = (finished / "run" / "recipe.toml").read_text()
    run = finished / "run"
    with pytest.raises(ValueError, match=message.replace(".", r"\.").replace("[", r"\[")):
        fit(recipe_files.load_recipe(run / "recipe.toml", settings), run, resume=True)
    assert (run / "recipe.toml").read_text() == before
    assert (run / "model").is_dir()


STEPS = ("run_folder.Provenance.begin_session", "run_folder.Run.extend", "run_folder.write_text")


@pytest.mark.parametrize("step", STEPS)
def test_killed_between_the_steps_of_an_extension_it_is_the_run_before(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)

    def killed(*arguments: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(f"regard.training.{step}", killed)
        with pytest.raises(RuntimeError, match="killed"):
            fit(recipe_files.load_recipe(run / "recipe.toml", ["training.updates=12"]), run, resume=True)
    resume(str(run))
    expected = load(finished / "run" / "model").state_dict()
    for name, tensor in load(run / "model").state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert measured(run) == measured(finished / "run")


def test_a_score_that_there_is_not_is_not_printed(finished: Path, tmp_path: Path) -> None:
    """Another measure and no more updates: no single checkpoint was judged by it."""
    shutil.copytree(finished / "run", tmp_path / "run")
    said = resume(str(tmp_path / "run"), "training.best=loss")
    assert "inf" not in said
    assert "averaged: loss" in said
    assert "best single" not in said
    assert "Kept the average of the last 2 checkpoints" in said


def test_scores_and_exports_of_the_model_before_are_not_those_of_the_new_one(finished: Path, tmp_path: Path) -> None:
    """Also if an earlier version made them, without a record of the weights."""
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)

    def command(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    command("evaluate", str(run), "--split", "valid")
    before = results.load_results(run)["valid"]
    command("export", str(run), "--to", "onnx")
    (run / "onnx" / "export.json").unlink()
    said = " ".join(resume(str(run), "training.updates=16").split())
    again = f"regard export {run} --to onnx --force"
    assert f"{run / 'onnx'} is of an earlier model; to export this one: {again}" in said
    assert not (run / "results.json").exists()
    assert [(row.run, row.evaluation) for row in results.compare([run])] == [("run/model-10", before)]
    assert f"the model of {run} has not been evaluated" in command("compare", str(run))
    command("evaluate", str(run), "--split", "valid")
    command("evaluate", str(run / "model-10"), "--split", "valid")
    rows = {row.run: row.evaluation for row in results.compare([run])}
    assert rows["run"] == results.load_results(run)["valid"]
    assert rows["run/model-10"].perplexity == before.perplexity != rows["run"].perplexity
    assert list(outdated_exports(run, run / "model")) == ["onnx"]


def test_the_command_takes_settings_and_no_recipe(finished: Path) -> None:
    done = CliRunner().invoke(app, ["train", "--resume", str(finished / "run"), "bahdanau-phrasebook"])
    assert done.exit_code == 2
    assert "it takes KEY=VALUE and nothing else" in " ".join(done.output.replace("│", " ").split())


def test_another_process_extends_a_run_whose_model_is_not_yet_moved(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun the first process moves it; the others may look before that."""
    from regard.training import fitting

    class ReachesTraining(Exception):
        pass

    def processes(*arguments: object) -> None:
        raise ReachesTraining

    shutil.copytree(finished / "run", tmp_path / "run")
    monkeypatch.setattr(fitting, "is_first_process", lambda: False)
    monkeypatch.setattr(fitting, "Processes", processes)
    longer = recipe_files.load_recipe(tmp_path / "run" / "recipe.toml", ["training.updates=20"])
    assert (tmp_path / "run" / "model").is_dir()
    with pytest.raises(ReachesTraining):
        fit(longer, tmp_path / "run", resume=True)


def test_an_extension_replaces_no_earlier_model(tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe("bahdanau-phrasebook")
    run = Run.create(recipe, tmp_path / "run")
    for content in ("first", "second", "third"):
        run.model.mkdir()
        (run.model / "weights").write_text(content)
        run.extend(recipe, 10)
    kept = {path.name: (path / "weights").read_text() for path in run.folder.glob("model*")}
    assert kept == {"model-10": "first", "model-10-2": "second", "model-10-3": "third"}


def test_force_removes_what_a_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe("bahdanau-phrasebook")
    run = Run.create(recipe, tmp_path / "run")
    others = ["model-best", "model-10-copy", "model-10-2-3", "model-", "notes"]
    for name in ("model", "data", "tensorboard", "wandb", "mlflow", "model-10", "model-10-2", *others):
        (run.folder / name).mkdir()
        (run.folder / name / "file").write_text(name)
    Run.create(recipe, run.folder, force=True)
    left = {path.name for path in run.folder.iterdir()}
    assert left == {*others, "checkpoints", "recipe.toml"}
