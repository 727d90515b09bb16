"""provenance.json and the card say with what and from what a model was trained."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("pydantic")

from regard.training import fit
from regard.training.recipe import recipe_loader
from regard.training.run.provenance import commit
from tests.support.tiny_training import recipe_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_and_its_card_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = recipe_file(tmp_path, rows=60)
    monkeypatch.setattr("sys.argv", ["/usr/bin/regard", "train", "tiny.toml", "training.updates=2"])
    monkeypatch.setenv("REGARD_TEST", "here")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    run = fit(recipe_loader.load_recipe(file, ["training.updates=2"]), tmp_path / "run")
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
    recipe = recipe_loader.load_recipe(
        recipe_file(tmp_path, rows=60), ["training.updates=2", "training.tensorboard=true"]
    )
    run = fit(recipe.model_copy(update={"about": "of https://me:leak-about@example.org"}), tmp_path / "run")
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
