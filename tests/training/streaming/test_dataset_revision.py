"""A run reads its dataset at the commit that the branch had when the run began. The Hub is a stand-in: no network."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pydantic")

from regard.training import Run, fit
from regard.training.recipe import recipe_loader
from regard.training.streaming.dataset_revision import pin_revision
from tests.training.streaming.test_stream_updates import pairs_of, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

DATA = 'dataset = "made/up"\ncolumns = ["en", "xx"]\ntrain = ["train"]\nvalid = ["validation"]'
OLD, NEW = "a" * 40, "b" * 40


class Hub:
    """A dataset with two branches; `main` moves, and every revision that is read is noted."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files, self.branches, self.online = files, {"main": OLD, "next": NEW}, True
        self.read: set[str | None] = set()

    def dataset_info(self, name: str, revision: str | None = None) -> SimpleNamespace:
        assert name == "made/up"
        if not self.online:
            raise ConnectionError
        return SimpleNamespace(sha=self.branches[revision or "main"])

    def load_dataset(self, name: str, *_: Any, split: str, revision: str | None, **__: Any) -> Any:
        import datasets

        assert name == "made/up"
        self.read.add(revision)
        rows = [{"en": source, "xx": target} for source, target in pairs_of(self.files[split])]
        return datasets.Dataset.from_list(rows).to_iterable_dataset()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return recipe_file(tmp_path, DATA)


@pytest.fixture
def hub(file: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    datasets, library = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
    hub = Hub({"train": file.parent / "train-0.tsv", "validation": file.parent / "valid.tsv"})
    monkeypatch.setattr(library.HfApi, "dataset_info", lambda _, name, revision=None: hub.dataset_info(name, revision))
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    return hub


def test_a_run_and_a_second_run_of_its_recipe_read_the_commit_of_its_beginning(
    file: Path, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit(recipe_loader.load_recipe(file, ["training.updates=2"]), tmp_path / "run")
    assert Run.open(run.folder).recipe.data.revision == OLD
    assert json.loads((run.folder / "provenance.json").read_text())["dataset"] == {"name": "made/up", "revision": OLD}
    assert f"Dataset: `made/up`, revision {OLD}" in (run.model / "README.md").read_text()
    hub.branches["main"] = NEW
    own = recipe_loader.load_recipe(run.folder / "recipe.toml", ["training.updates=3"])
    fit(own, run.folder, resume=True)
    fit(recipe_loader.load_recipe(file, ["training.updates=4"]), run.folder, resume=True)  # without a revision
    fit(own, tmp_path / "second")
    assert hub.read == {OLD}
    assert "begins again" not in capsys.readouterr().out
    with pytest.raises(ValueError, match=rf"'main' is commit {NEW} .* has read {OLD}: leave data\.revision as it is"):
        fit(recipe_loader.load_recipe(file, ["data.revision=main"]), run.folder, resume=True)
    fit(recipe_loader.load_recipe(file, ["training.updates=5", f"data.revision={NEW}"]), run.folder, resume=True)
    assert hub.read == {OLD, NEW}
    assert "the stream begins again" in capsys.readouterr().out


def test_a_branch_or_a_tag_becomes_a_commit_once(file: Path, hub: Hub) -> None:
    def revision(name: str, begun: Any = None, *, restart: bool = False) -> str:
        recipe: Any = recipe_loader.load_recipe(file, [f"data.revision={name}"] if name else [])
        return str(pin_revision(recipe, begun, restart=restart).data.revision)  # type: ignore[union-attr]

    assert [revision(name) for name in ("", "main", "next", NEW)] == [OLD, OLD, NEW, NEW]
    begun: Any = recipe_loader.load_recipe(file, [f"data.revision={OLD}"])
    assert revision("main", begun) == OLD
    hub.branches["main"] = NEW
    assert [revision(name, begun, restart=True) for name in ("", "main", OLD)] == [OLD] * 3
    hub.online = False
    assert [revision(name) for name in ("", "main", OLD)] == ["", "main", OLD]
    assert [revision(name, begun) for name in ("", "main", NEW)] == [OLD, OLD, NEW]
