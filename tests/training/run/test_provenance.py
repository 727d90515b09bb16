"""provenance.json and the card say with what and from what a model was trained."""

from __future__ import annotations

import hashlib
import json
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


def test_the_commit_is_read_without_git(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit(tmp_path) is None
    (git / "packed-refs").write_text("# pack-refs\n" + "b" * 40 + " refs/heads/main\n")
    (tmp_path / "below").mkdir()
    assert commit(tmp_path / "below") == "b" * 40
    (git / "refs" / "heads" / "main").write_text("a" * 40 + "\n")
    assert commit(tmp_path) == "a" * 40
    (git / "HEAD").write_text("c" * 40 + "\n")
    assert commit(tmp_path) == "c" * 40


@pytest.mark.parametrize(
    "head",
    [
        b"ref: ../../secret\n",
        b"ref: refs/../../../secret\n",
        b"ref: secret\n",
        b"ref: refs/heads/link\n",
        b"ref: refs/heads/\0\n",
        b"TOP SECRET",
        b"\xff\xfe",
    ],
)
def test_a_repository_cannot_have_another_file_recorded_as_its_commit(tmp_path: Path, head: bytes) -> None:
    git = tmp_path / "project" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    for folder in (tmp_path, git):
        (folder / "secret").write_text("TOP SECRET")
    (git / "refs" / "heads" / "link").symlink_to(tmp_path / "secret")
    (git / "HEAD").write_bytes(head)
    assert commit(tmp_path / "project") is None


def test_a_large_file_is_not_read_for_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("c" * 64 + "\n")
    assert commit(tmp_path) == "c" * 64
    monkeypatch.setattr("regard.training.run.provenance.LARGEST", 64)
    assert commit(tmp_path) is None
