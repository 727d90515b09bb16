"""The library's models: their order, the sentences that they know, and whether they attend."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from regard.decoding import model_folders, translate
from regard.special_tokens import UNKNOWN
from regard.viewer import library
from regard.viewer.library import PHRASEBOOK, PICTURE, SOUND, Library, installed_models, model_at, sample_files
from tests.support.small_translators import save_unfinished_run, small_translator, text_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

MODELS = {model.name: model for model in installed_models() if model.ours}
LECTURES = [name for name in MODELS if name.startswith(PHRASEBOOK)]


def test_models_of_the_lectures_come_after_the_others() -> None:
    names = list(MODELS)
    assert names[-len(LECTURES) :] == LECTURES
    assert not MODELS["phrasebook-seq2seq-en-fr"].attends
    assert MODELS["tatoeba-bahdanau-en-fr"].attends
    assert MODELS["phrasebook-seq2seq-en-fr"].title == "Seq2seq on the phrase book, English to French"


def test_a_run_that_is_not_finished_is_a_model(tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="needs the extra `train`")
    model = small_translator(len(text_tokenizers().source), "transformer", "transformer")
    save_unfinished_run(tmp_path / "run", model, "best")
    entry = model_at(str(tmp_path / "run"))
    assert (entry.name, entry.task, entry.ours, entry.layers) == ("run", "translate", True, 2)
    assert model_folders.load(str(tmp_path / "run")).model.task == "translate"


@pytest.mark.parametrize("name", LECTURES)
def test_a_model_knows_every_word_of_its_examples(name: str) -> None:
    tokenizers = model_folders.load(name).tokenizers
    tokenizer = tokenizers.source if MODELS[name].task == "translate" else tokenizers.target
    assert MODELS[name].examples
    for text in MODELS[name].examples:
        assert UNKNOWN not in tokenizer.encode(text)


@pytest.mark.parametrize("name", [name for name in LECTURES if MODELS[name].task == "translate"])
def test_the_short_sentences_of_the_lectures_are_translated(name: str) -> None:
    """Also by the model with one context vector; a long sentence is what it cannot keep."""
    loaded = model_folders.load(name)
    made = translate(loaded.model, loaded.tokenizers, ["He hit me with a pie.", "I am a student."], beams=5)
    assert [result.text for result in made] == ["il m' a entarté .", "je suis étudiant ."]


def test_a_model_that_is_no_longer_loaded_is_freed_while_its_trace_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LOADED", 1)
    first, second, *_ = [MODELS[name] for name in LECTURES if MODELS[name].attends and MODELS[name].task == "translate"]
    models = Library(models=[first, second])
    trace = models.read(first.name, first.examples[0])
    depths = [call.layer for call in trace.seen]
    reference = weakref.ref(models.loaded(first).model)
    models.loaded(second)
    gc.collect()
    assert reference() is None
    assert [call.layer for call in models.trace(trace.id).seen] == depths
    assert trace.seen.faithful


def test_a_loaded_model_keeps_its_fast_paths() -> None:
    """A hook on a part switches off packed products and recorded searches."""
    model = MODELS["tatoeba-transformer-en-fr"]
    parts = Library(models=[model]).loaded(model).model.modules()
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in parts)


def test_titles_read_as_names() -> None:
    assert MODELS["opinions-lstm"].title == "Opinions (LSTM), classifies texts"
    assert MODELS["phrasebook-lstmn-en"].title == "LSTMN on the phrase book, generates text"
    assert not [model.title for model in MODELS.values() if "lstm" in model.title or "cnn" in model.title]


def test_pictures_and_sounds_ship() -> None:
    assert {len(sample_files(suffix)) >= 3 for suffix in (PICTURE, SOUND)} == {True}
