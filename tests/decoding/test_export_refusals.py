"""Models that ONNX or CTranslate2 cannot run are refused with a sentence, before anything is written."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("typer")

from regard import cli
from regard.data import LabelSet, Tokenizer, TokenizerPair
from regard.decoding import export_ctranslate2
from regard.decoding.onnx import export_onnx
from regard.models import (
    Classifier,
    ClassifierConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    HeadConfig,
    MultiDecoder,
    MultiDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from regard.models.recurrent_decoder import RecurrentDecoder

if TYPE_CHECKING:
    from pathlib import Path

TEXT = Tokenizer.train("word", 20, ["<2fr> <2es> a b c d"])
WORDS = len(TEXT)
ENCODER = RecurrentEncoderConfig(embedding=8, width=8)
DECODER = RecurrentDecoderConfig(embedding=8, width=8)
SIZES: dict[str, Any] = {"width": 8, "heads": 2, "hidden": 8, "layers": 1}


class OwnDecoder(RecurrentDecoder):
    """Like a plug-in, it keeps no configuration."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        del self.config


@dataclass(frozen=True)
class OwnDecoderConfig(RecurrentDecoderConfig):
    kind: str = "mypkg.parts:OwnDecoderConfig"  # type: ignore[assignment]

    def build(self, vocabulary: int, memory: int, longest: int) -> OwnDecoder:
        return OwnDecoder(self, vocabulary, memory)


@dataclass(frozen=True)
class OwnTransformerConfig(TransformerEncoderConfig):
    kind: str = "mypkg.parts:OwnTransformerConfig"  # type: ignore[assignment]


@dataclass(frozen=True)
class OwnHead(HeadConfig):
    kind: str = "mypkg.parts:OwnHead"


def several_decoders() -> MultiDecoder:
    return MultiDecoder(MultiDecoderConfig(WORDS, WORDS, ENCODER, DECODER, tags=[4, 5]))


def test_several_decoders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"several decoders, here 2, is not exported to .*; export it with --to onnx"):
        export_ctranslate2(several_decoders(), TokenizerPair(TEXT, TEXT), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_of_a_plugin(tmp_path: Path) -> None:
    decoder = EncoderDecoder(EncoderDecoderConfig(WORDS, WORDS, ENCODER, OwnDecoderConfig(embedding=8, width=8)))
    with pytest.raises(ValueError, match=r"a decoder of kind 'mypkg.parts:OwnDecoderConfig' is not exported to ONNX"):
        export_onnx(decoder, TokenizerPair(TEXT, TEXT), tmp_path / "out")
    several = MultiDecoder(
        MultiDecoderConfig(WORDS, WORDS, ENCODER, OwnDecoderConfig(embedding=8, width=8), tags=[4, 5])
    )
    with pytest.raises(ValueError, match=r"a decoder of kind 'mypkg.parts:OwnDecoderConfig' is not exported to ONNX"):
        export_onnx(several, TokenizerPair(TEXT, TEXT), tmp_path / "out")
    head = Classifier(ClassifierConfig(WORDS, 2, ENCODER, OwnHead()))
    with pytest.raises(ValueError, match=r"a head of kind 'mypkg.parts:OwnHead' is not exported to ONNX; exported are"):
        export_onnx(head, TokenizerPair(TEXT, LabelSet(["a", "b"])), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_transformer_of_a_plugin(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    parts = OwnTransformerConfig(**SIZES), TransformerDecoderConfig(**SIZES)
    encoder = EncoderDecoder(EncoderDecoderConfig(WORDS, WORDS, *parts))
    with pytest.raises(ValueError, match=r"runs Transformers; this model's encoder is of kind 'mypkg.parts:OwnTrans"):
        export_ctranslate2(encoder, TokenizerPair(TEXT, TEXT), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several_decoders().save_pretrained(tmp_path / "model")
    TokenizerPair(TEXT, TEXT).save(tmp_path / "model")
    for model, expected in ((str(tmp_path / "model"), "several decoders"), ("opinions-lstm", "classifier")):
        words = ["regard", "export", model, "--to", "ctranslate2", "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert expected in str(left.value.code)


def test_folders_for_transformers_are_not_written_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, expected in (("transformers", "--to ctranslate2 or --to onnx"), ("tflite", "one of ctranslate2, onnx")):
        monkeypatch.setattr(sys, "argv", ["regard", "export", "opinions-lstm", "--to", engine, "--out", str(tmp_path)])
        with pytest.raises(SystemExit, match=expected):
            cli.main()
