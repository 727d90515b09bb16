"""Sizes in config.json are compared with the weights before anything is built, and every damaged file is named."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("safetensors", reason="needs safetensors")

from regard.decoding import load_model_and_tokenizers as loader
from regard.models import load

if TYPE_CHECKING:
    from pathlib import Path

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
