"""Models in files: saved, loaded again, and refused where a file is damaged or missing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from stat import S_IMODE

import pytest
import torch

from regard.models import (
    EncoderDecoder,
)
from regard.training import Run
from regard.training.checkpoint import Checkpoints
from tests.support.small_models import DECODERS, ENCODERS, batch, translator

GRU, TRANSFORMER = ENCODERS["bidirectional GRU"], ENCODERS["Transformer"]


@pytest.mark.parametrize("tied", ["none", "decoder", "all"])
def test_saved_and_loaded_it_is_the_same_model(tmp_path: Path, tied: str) -> None:
    model, pairs = translator(TRANSFORMER, DECODERS["Transformer"], tied=tied).float(), batch()
    model.save_pretrained(tmp_path, card="# A model\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    loaded = EncoderDecoder.from_pretrained(tmp_path)
    assert loaded.config == model.config
    assert loaded.loss(pairs).total.item() == model.loss(pairs).total.item()
    if tied == "all":
        assert loaded.encoder.embedding.weight is loaded.decoder.output.weight


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_who_may_read_a_file_may_read_the_weights(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        translator(GRU, DECODERS["Bahdanau"]).save_pretrained(tmp_path / "model")
        Checkpoints(Run(tmp_path, None), 1).take(1, {"x": torch.zeros(1)})
        assert os.umask(mask) == mask  # asking for it changed nothing
    finally:
        os.umask(before)
    written = [*(tmp_path / "model").iterdir(), *tmp_path.glob("*.safetensors")]
    assert len(written) == 3
    assert {S_IMODE(file.stat().st_mode) for file in written} == {0o666 & ~mask}


def test_weights_that_may_not_be_read_are_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator(GRU, DECODERS["Bahdanau"]).save_pretrained(tmp_path)
    really = Path.open

    def refused(path: Path, *how: object, **more: object) -> object:
        if path.name == "model.safetensors":  # chmod does not keep root out
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *how, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*model\.safetensors'"):
        EncoderDecoder.from_pretrained(tmp_path)


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        EncoderDecoder.from_pretrained(tmp_path)
    model = translator(GRU, DECODERS["Bahdanau"])
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        EncoderDecoder.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ValueError, match="does not hold the weights"):
        EncoderDecoder.from_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**written, "colour": "red"}))
    with pytest.raises(ValueError, match="colour"):
        EncoderDecoder.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**written, "model_type": "bert"}))
    with pytest.raises(ValueError, match="bert"):
        EncoderDecoder.from_pretrained(tmp_path)
