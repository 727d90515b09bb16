"""int8 graphs translate nearly as torch does, and are smaller."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from regard.decoding import load_model_and_tokenizers, translate
from regard.decoding.onnx import export_onnx
from tests.support.onnx_graphs import greedy

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime", reason="needs the extra `export`")

SENTENCES = [
    "Where is the library?",
    "My sister has a small black dog.",
    "I have never seen such a beautiful garden.",
    "It is raining.",
    "He did not say anything because he was tired.",
    "We will have to wait until tomorrow morning.",
    "What time is it?",
    "She works for a small company.",
    "I like this red car.",
    "Do you speak French?",
]


@pytest.mark.parametrize("name", ["tatoeba-transformer-en-fr", "tatoeba-bahdanau-en-fr"])
def test_most_translations_are_those_of_torch(name: str, tmp_path: Path) -> None:
    """Of 200 sentences of the test set, 195 and 193 were the same; of these ten, two may differ."""
    loaded = load_model_and_tokenizers.load(name)
    folders = [
        export_onnx(loaded.model, loaded.tokenizers, tmp_path / kind, quantization=kind) for kind in ("none", "int8")
    ]
    assert json.loads((folders[1] / "onnx.json").read_text())["quantization"] == "int8"
    floats, bytes_ = (sum(file.stat().st_size for file in folder.glob("*.onnx")) for folder in folders)
    assert bytes_ < 0.85 * floats  # the floats of models that ship have two bytes, and recurrent layers stay so
    assert not list(folders[1].glob("*.float.onnx"))
    expected = list(translate(loaded.model, loaded.tokenizers, SENTENCES, beams=1))
    same = [greedy(folders[1], each.source_tokens, 60)[0] == each.tokens for each in expected]
    assert sum(same) >= len(SENTENCES) - 2


def test_without_onnxruntime_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model_and_tokenizers.load("opinions-lstm")
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(ValueError, match=r"int8 graphs need .* pip install 'regard\[export\]'"):
        export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx", quantization="int8")
    assert not (tmp_path / "onnx").exists()
