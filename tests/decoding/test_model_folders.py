"""A model and its tokenizers from the folder of a run, or by name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.decoding import model_folders
from regard.models import EncoderDecoder, EncoderDecoderConfig, saved_weights
from regard.models.saved_weights import snapshot_file
from tests.support.small_translators import (
    DECODERS,
    ENCODERS,
    save_run,
    save_unfinished_run,
    small_translator,
    text_tokenizers,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("run"))


def test_a_run_brings_its_search(folder: Path) -> None:
    loaded = model_folders.load(folder)
    assert loaded.search == {"beams": 2, "length_penalty": 0.5}
    assert (loaded.run, loaded.folder) == (folder, folder / "model")
    assert model_folders.load(folder / "model").search == {}


@pytest.mark.parametrize("name", ["model", "model-300", "model-300-2"])
def test_a_model_in_a_run_brings_the_search_of_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save_run(tmp_path / "run")
    (run / "recipe.toml").write_text("[data]\n[search]\nbeams = 2\n", encoding="utf-8")
    (run / "model").rename(run / name)
    loaded = model_folders.load(run / name)
    assert (loaded.run, loaded.search) == (run, {"beams": 2})
    monkeypatch.chdir(run / name)
    assert model_folders.load(".").run == run.resolve()
    (run / name).rename(tmp_path / "model-300")
    assert model_folders.load(tmp_path / "model-300").run is None


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no model"):
        model_folders.find(tmp_path)
    with pytest.raises(ValueError, match="no model is called nonsense: give the folder of a run"):
        model_folders.find("nonsense")
    with pytest.raises(ValueError, match="no model is called"):
        model_folders.find("../recipes")


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("update", "best"), "its best weights so far are used, those of update 75."),
        (("update",), "its newest weights so far are used, those of update 100."),
    ],
)
@pytest.mark.parametrize("tied", ["none", "all"])
def test_a_run_that_is_not_finished_gives_its_best_weights_so_far(
    tied: str, kinds: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pydantic", reason="needs the extra `train`")
    size = len(text_tokenizers().source)
    model = EncoderDecoder(
        EncoderDecoderConfig(size, size, ENCODERS["transformer"], DECODERS["transformer"], tied=tied)  # type: ignore[arg-type]
    )
    save_unfinished_run(tmp_path / "run", model, *kinds)
    loaded = model_folders.load(tmp_path / "run")
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert not loaded.model.training
    assert (loaded.run, loaded.search) == (tmp_path / "run", {"beams": 3})
    assert loaded.update == (75 if "best" in kinds else 100)
    written = capsys.readouterr().err
    assert said in written
    assert f"regard train --resume {tmp_path / 'run'}" in written
    assert model_folders.is_own_model(str(tmp_path / "run"))


def test_an_unfinished_run_without_weights_names_the_command_that_finishes_it(tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="needs the extra `train`")
    save_unfinished_run(tmp_path / "run", small_translator(len(text_tokenizers().source)))
    with pytest.raises(ValueError, match=r"run is a run that is not finished: .*: regard train --resume .*run$"):
        model_folders.load(tmp_path / "run")


def test_a_finished_model_comes_before_snapshots(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="needs the extra `train`")
    size = len(text_tokenizers().source)
    save_unfinished_run(tmp_path / "run", small_translator(size, "transformer", "transformer"), "best")
    shutil.copytree(folder / "model", tmp_path / "run" / "model")
    loaded = model_folders.load(tmp_path / "run")
    assert loaded.update is None
    assert loaded.folder == tmp_path / "run" / "model"


class TestRunInTraining:
    """Its trainer removes snapshots at any moment, here as the weights are about to be read."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        pytest.importorskip("pydantic", reason="needs the extra `train`")
        save_unfinished_run(tmp_path / "run", small_translator(len(text_tokenizers().source)), "best")
        return tmp_path / "run"

    @pytest.mark.parametrize("step", ["read", "check_seal", "check_header"])
    def test_it_says_to_try_again(self, step: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(saved_weights, step)

        def with_event(*arguments: Any) -> Any:
            before = snapshot_file(run / "checkpoints", "best", 75)
            if before.exists():
                before.rename(snapshot_file(run / "checkpoints", "best", 76))
            return original(*arguments)

        monkeypatch.setattr(saved_weights, step, with_event)
        with pytest.raises(ValueError, match="its weights were replaced while they were loaded: try again"):
            model_folders.load(run)
        assert model_folders.load(run).update == 76

    def test_a_damaged_snapshot_is_reported(self, run: Path) -> None:
        (run / "checkpoints" / "best-00000075.safetensors").write_bytes(b"none")
        with pytest.raises(ValueError, match=r"best-00000075.safetensors does not hold the weights"):
            model_folders.load(run)


def test_a_misspelled_name_suggests_the_model_that_ships() -> None:
    message = r"no model is called tatoeba-transfomer-en-fr; did you mean tatoeba-transformer-en-fr\? Give the folder"
    with pytest.raises(ValueError, match=message):
        model_folders.find("tatoeba-transfomer-en-fr")


def test_a_precision_that_there_is_not_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="precision is one of float32, bfloat16, got 'float16'"):
        model_folders.load(folder, precision="float16")
