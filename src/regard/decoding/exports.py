"""The folder of an export: where it is, when it may be replaced, and which weights it was made from."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import DamagedFileError, read_object, replacing_folder, write_text
from ..models.pretrained import WEIGHTS, weights_sha256

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ..models.base import ExportEngine

FILES: dict[ExportEngine, str] = {"ctranslate2": "model.bin", "onnx": "onnx.json"}
"""A file that every export for an engine has."""
RECORD, KEY = "export.json", "weights_sha256"
"""The record of the weights, and its key. Exports of earlier versions have none."""


def require_free(folder: str | os.PathLike[str], engine: ExportEngine, *, force: bool) -> Path:
    """The folder, if nothing is there, or with `force` another export for this engine."""
    folder = Path(folder)
    if not folder.exists() and not folder.is_symlink():
        return folder
    if not (folder / FILES[engine]).is_file() or folder.is_symlink():
        raise ValueError(f"{folder} is there already and is no export for {engine}; export to another folder")
    if not force:
        raise ValueError(
            f"{folder} is there already; replace it with --force (force=True), or export to another folder"
        )
    return folder


@contextmanager
def export_files(folder: Path, weights: Path | None) -> Iterator[Path]:
    """Give the path of a folder to fill; it then takes the place of `folder`, with a record of the file of weights."""
    with replacing_folder(folder) as unfinished:
        yield unfinished
        if weights is not None:
            _record(unfinished, weights_sha256(weights))


def exported_weights(folder: Path) -> str | None:
    """The SHA-256 of the weights that an export was made from; None where it is not recorded."""
    file = folder / RECORD
    if not file.is_file():
        return None
    digest = read_object(file, f"export to {folder} again").get(KEY)
    return digest if isinstance(digest, str) else None


def is_outdated(folder: Path, model: Path) -> bool:
    """Whether an export was made from other weights than those of a model's folder, as far as is known."""
    recorded, weights = exported_weights(folder), model / WEIGHTS
    return recorded is not None and weights.is_file() and weights_sha256(weights) != recorded


def run_exports(run: Path) -> dict[ExportEngine, Path]:
    """The exports in the folder of a run, where `regard export` writes them by default."""
    return {engine: run / engine for engine, file in FILES.items() if (run / engine / file).is_file()}


def outdated_exports(run: Path, model: Path) -> dict[ExportEngine, Path]:
    """Those of other weights than the model's, or with a record that cannot be read."""
    outdated = {}
    for engine, folder in run_exports(run).items():
        try:
            if not is_outdated(folder, model):
                continue
        except DamagedFileError:
            pass
        outdated[engine] = folder
    return outdated


def record_run_exports(run: Path, model: Path) -> None:
    """Record the weights of a model that is about to be replaced, in exports that have no record."""
    if (model / WEIGHTS).is_file():
        for folder in run_exports(run).values():
            if not (folder / RECORD).exists():
                _record(folder, weights_sha256(model / WEIGHTS))


def _record(folder: Path, digest: str) -> None:
    write_text(folder / RECORD, json.dumps({KEY: digest}) + "\n")
