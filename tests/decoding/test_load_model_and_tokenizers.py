"""A model and its tokenizers from the folder of a run, or by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.decoding import load_model_and_tokenizers
from tests.support.small_translators import save_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("run"))


def test_a_run_brings_its_search(folder: Path) -> None:
    loaded = load_model_and_tokenizers.load(folder)
    assert loaded.search == {"beams": 2, "length_penalty": 0.5}
    assert (loaded.run, loaded.folder) == (folder, folder / "model")
    assert load_model_and_tokenizers.load(folder / "model").search == {}


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no model"):
        load_model_and_tokenizers.find(tmp_path)
    with pytest.raises(ValueError, match="no model is called nonsense"):
        load_model_and_tokenizers.find("nonsense")
    with pytest.raises(ValueError, match="no model is called"):
        load_model_and_tokenizers.find("../recipes")


def test_a_precision_that_there_is_not_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="precision is one of float32, bfloat16, got 'float16'"):
        load_model_and_tokenizers.load(folder, precision="float16")
