"""Models in files: saved, loaded again, and refused where a file is damaged or missing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
import torch

from regard.decoding import model_folders as loader
from regard.models import EncoderDecoder, load
from regard.models.saved_weights import best_or_newest, snapshot_file, snapshot_files, snapshot_update
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
        (tmp_path / "checkpoints").mkdir()
        Checkpoints(Run(tmp_path, None), 1).take(1, {"x": torch.zeros(1)})
        assert os.umask(mask) == mask  # asking for it changed nothing
    finally:
        os.umask(before)
    written = [*(tmp_path / "model").iterdir(), *tmp_path.glob("*/update-*.safetensors")]
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


def test_files_are_in_the_order_of_their_updates(tmp_path: Path) -> None:
    for update in (100_000_000, 99_999_999, 7):  # the first has more digits than names are padded to
        snapshot_file(tmp_path, "update", update).touch()
    for copy in ("update-copy", "update-00000010-before-the-move"):
        (tmp_path / f"{copy}.safetensors").touch()
    assert [snapshot_update(file) for file in snapshot_files(tmp_path, "update")] == [7, 99_999_999, 100_000_000]


def test_the_best_comes_before_the_newest(tmp_path: Path) -> None:
    assert best_or_newest(tmp_path) is None
    snapshot_file(tmp_path, "update", 20).touch()
    assert best_or_newest(tmp_path) == tmp_path / "update-00000020.safetensors"
    snapshot_file(tmp_path, "best", 10).touch()
    assert best_or_newest(tmp_path) == tmp_path / "best-00000010.safetensors"


pytest.importorskip("safetensors", reason="needs safetensors")


SHIPPED = loader.shipped()


def copied(name: str, folder: Path, **changes: Any) -> Path:
    """A copy of a model that ships, with other values in config.json; a key with a dot is in a section."""
    shutil.copytree(loader.SHIPPED / name, folder)
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        *sections, last = key.split("__")
        target = config
        for section in sections:
            target = target[section]
        target[last] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_is_what_it_says(name: str) -> None:
    load(loader.SHIPPED / name)


SIZES = [
    ("tatoeba-transformer-en-fr", {"encoder__width": 8000}),
    ("tatoeba-transformer-en-fr", {"encoder__layers": 10**6}),
    ("tatoeba-transformer-en-fr", {"decoder__layers": 10**6, "encoder__layers": 10**6}),
    ("tatoeba-transformer-en-fr", {"source_vocabulary": 2**31 - 1, "target_vocabulary": 2**31 - 1}),
    ("tatoeba-transformer-en-fr", {"longest": 2**63}),
    ("tatoeba-transformer-en-fr", {"encoder__width": 2**64}),
    ("tatoeba-bahdanau-en-fr", {"encoder__width": 50_000}),
    ("tatoeba-bahdanau-en-fr", {"decoder__embedding": 2**62}),
    ("digits-cnn", {"encoder__layers": 10**6}),
    ("digits-cnn", {"encoder__windows": [10**9]}),
    ("digits-cnn", {"encoder__windows": list(range(1, 100_000))}),
    ("scenes-soft", {"decoder__width": 100_000}),
    ("shakespeare-transformer", {"decoder__layers": 10**6}),
    ("opinions-lstm", {"encoder__layers": 10**6}),
]

BOUNDED = """
import json, resource, sys, time
from regard.models import load
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
before = peak()
for folder in sys.argv[1:]:
    try:
        load(folder)
    except ValueError as error:
        print(json.dumps([folder, str(error), peak() - before]))
    else:
        print(json.dumps([folder, "loaded", peak() - before]))
"""


def test_absurd_sizes_are_refused_before_they_are_built(tmp_path: Path) -> None:
    """In a process of its own with three gigabytes: before, one of these took minutes and more memory than that."""
    folders = [str(copied(name, tmp_path / str(at), **changes)) for at, (name, changes) in enumerate(SIZES)]
    limit = 8 << 30  # of addresses; PyTorch's libraries take some
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, *folders],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(SIZES), done.stderr[-2000:]
    for (name, changes), (folder, message, memory) in zip(SIZES, results, strict=True):
        assert folder in message, (name, changes, message)
        assert memory < 700, (name, changes, memory)


DAMAGES: dict[str, bytes] = {
    "empty": b"",
    "short": b"\x00\x01",
    "huge header": b"\xff" * 8 + b"{}",
    "no JSON": (8).to_bytes(8, "little") + b"notjson!",
    "nested": b"[" * 200_000,
    "not UTF-8": b"\xff\xfe{}",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "reader.json", "labels.json"])
def test_a_damaged_file_is_named(name: str, damage: str, tmp_path: Path) -> None:
    shipped = next(model for model in SHIPPED if (loader.SHIPPED / model / name).exists())
    folder = copied(shipped, tmp_path / "model")
    (folder / name).write_bytes(DAMAGES[damage])
    with pytest.raises(ValueError, match=rf"{tmp_path}/model/{name}".replace(".", r"\.")):
        loader.load(folder)


def test_weights_that_were_changed_are_named(tmp_path: Path) -> None:
    model = load(loader.SHIPPED / "digits-cnn")
    model.save_pretrained(tmp_path)
    load(tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: its SHA-256"):
        load(tmp_path)
    model.save_pretrained(tmp_path)
    load(tmp_path)
