"""Folders of models: loading a run, a model or one that ships with regard; and of their exports to other engines."""

from __future__ import annotations

import difflib
import json
import re
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..files import DamagedFileError, read_object, replacing_folder, write_text
from ..models.saved_weights import WEIGHTS, weights_sha256

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Sequence

    from ..data.tokenizer_pair import TokenizerPair
    from ..models.configurations import ExportEngine
    from ..models.saved_weights import PretrainedModel
    from .beam import SearchSettings

PrecisionName = Literal["float32", "bfloat16"]
SHIPPED = Path(__file__).parent.parent / "shipped"
DEFAULT = "tatoeba-transformer-en-fr"
RECIPE, DATA = "recipe.toml", "data"  # of a run
EARLIER = re.compile(r"model-[0-9]+(-[0-9]+)?")
"""The names of the models that a run had before it was extended."""
COMMANDS = {"write": "generate", "spell": "classify"}  # by task; the other tasks have the names of their commands


@dataclass
class Pretrained:
    """A model with its tokenizers; `search` has the search settings of its recipe, where there is one."""

    model: Any  # an EncoderDecoder, a Classifier, or a CTranslate2
    tokenizers: TokenizerPair
    folder: Path
    run: Path | None
    search: SearchSettings
    update: int | None = None
    """Of a run that is not finished: the update that the weights are of."""

    @property
    def weights_sha256(self) -> str | None:
        """What tells the weights from those of other models of the run; None of a snapshot, or where it is unknown."""
        file = self.folder / WEIGHTS
        return weights_sha256(file) if file.is_file() else exported_weights(self.folder)


def load(
    name: str | Path = DEFAULT,
    device: str = "cpu",
    engine: str = "torch",
    *,
    wanted: Collection[str] = (),
    precision: PrecisionName = "float32",
) -> Pretrained:
    """The model in evaluation mode on a device, or the copy of it that `regard export` wrote for another engine.

    A model whose task is not in `wanted` is an error that names the command for it. `precision` is for translators.
    Of a run that is not finished, the best weights so far are taken, and standard error says of which update they are.
    """
    from ..data.tokenizer_pair import TokenizerPair

    exported = engine == "ctranslate2"
    if precision not in get_args(PrecisionName):
        raise ValueError(f"precision is one of {', '.join(get_args(PrecisionName))}, got {precision!r}")
    if exported and precision != "float32":
        raise ValueError(f"precision {precision} is for the engine torch; ctranslate2 has that of its export")
    model: Any
    if exported:
        from .ctranslate2 import CTranslate2

        place = _exported(Path(name))
        tokenizers = TokenizerPair.load(place.folder)
        model = CTranslate2(place.folder, tokenizers, device)
    else:
        model, place = _load_torch(name)
        tokenizers = TokenizerPair.load(place.folder if place.snapshot is None else Path(name) / DATA)
        model = model.to(device)
    if wanted and model.task not in wanted:
        command = COMMANDS.get(model.task, model.task)
        raise ValueError(f"{name} is a model for `regard {command}`; give one that can {' or '.join(wanted)}")
    if precision == "bfloat16":
        if model.task != "translate":
            raise ValueError(f"precision bfloat16 is for translators; {name} is none: use float32")
        model = model.bfloat16()
    recipe, run = _recipe(place.run), place.run
    update = None if place.snapshot is None else _say_update(name, place.snapshot)
    return Pretrained(model, tokenizers, place.folder, run, _search(recipe, run), update)


def load_ensemble(
    names: Sequence[str | Path], device: str = "cpu", engine: str = "torch", *, precision: PrecisionName = "float32"
) -> Pretrained:
    """One translator as `load` gives it; of several an `Ensemble`, with the folder and the settings of the first."""
    loaded = [load(name, device, engine, wanted=("translate",), precision=precision) for name in names]
    if len(loaded) == 1:
        return loaded[0]
    if engine != "torch":
        raise ValueError(f"the engine {engine} runs one model; for an ensemble use the engine torch")
    from .ensemble import Ensemble, check_same_tokenizers

    check_same_tokenizers([str(name) for name in names], [each.tokenizers for each in loaded])
    return replace(loaded[0], model=Ensemble([each.model for each in loaded]))


def find(name: str | Path) -> tuple[Path, Path | None]:
    """The folder of a model, and that of its run, if it is part of one."""
    folder = Path(name)
    if (folder / "model" / "config.json").is_file():
        return folder / "model", folder
    if (folder / "config.json").is_file():
        return folder, None
    if (folder / RECIPE).is_file():
        if "data" not in _recipe(folder):
            raise ValueError(
                f"{folder} is a run that fit(model, …) began in Python, and commands use models that recipes describe: "
                f"load the weights in Python, from {folder / 'model'} once the run is finished"
            )
        raise ValueError(f"{folder} is a run that is not finished: finish it with: regard train --resume {folder}")
    if folder.is_dir():
        raise ValueError(f"{folder} holds no model: a run has model/config.json in it, and a model config.json")
    if (SHIPPED / folder.name / "config.json").is_file() and folder.name == str(name):
        return SHIPPED / folder.name, None
    ready = f", or one that ships: {', '.join(shipped())}" if shipped() else ""
    near = difflib.get_close_matches(str(name), shipped(), n=1)
    rest = f"; did you mean {near[0]}? Give" if near else ": give"
    raise ValueError(f"no model is called {name}{rest} the folder of a run or of a model{ready}")


@dataclass(frozen=True)
class Place:
    """Where a model is read from: the folder of its config.json, its run, and the snapshot of an unfinished run."""

    folder: Path
    run: Path | None
    snapshot: Path | None = None


def _load_torch(name: str | Path) -> tuple[PretrainedModel, Place]:
    from ..models.saved_weights import load as load_model

    snapshot = best_snapshot(Path(name))
    if snapshot is None:
        folder, run = find(name)
        return load_model(folder), Place(folder, run or enclosing_run(folder))
    try:
        return load_model(snapshot.parent, snapshot.name), Place(snapshot.parent, Path(name), snapshot)
    except (ValueError, OSError):
        if snapshot.exists():
            raise
    raise ValueError(f"{name} is being trained, and its weights were replaced while they were loaded: try again")


def best_snapshot(run: Path) -> Path | None:
    """The best weights so far, else the newest, of a run that is not finished; None where there are none.

    They can be loaded with config.json beside them, and the tokenizers of the run's data.
    """
    from ..models.saved_weights import best_or_newest

    folder = run / "checkpoints"
    if (run / "model" / "config.json").is_file() or not (folder / "config.json").is_file() or not (run / DATA).is_dir():
        return None
    return best_or_newest(folder)


def _say_update(name: str | Path, snapshot: Path) -> int:
    """The update of the weights of a run that is not finished, which standard error is told of."""
    from ..models.saved_weights import snapshot_update

    update, kind = snapshot_update(snapshot), "best" if snapshot.name.startswith("best") else "newest"
    print(
        f"regard: {name} is not finished; its {kind} weights so far are used, those of update {update:,}. "
        f"To finish it: regard train --resume {name}",
        file=sys.stderr,
    )
    return update


def is_own_model(name: str) -> bool:
    """Whether this names a model of regard: a run, a model's folder, or one that ships."""
    folder = Path(name)
    if best_snapshot(folder) is not None:
        return True
    if (folder / "model" / "config.json").is_file() or (not folder.exists() and name in shipped()):
        return True
    return (folder / "config.json").is_file() and is_own_config(folder / "config.json")


def is_own_config(config: Path) -> bool:
    """Whether a config.json is that of a model of regard."""
    return str(read_object(config).get("model_type")).startswith("regard-")


def export_folder(model: Path, run: Path | None, engine: str) -> Path:
    """Where `regard export` writes by default: into the run or the model; for one that ships, the current folder."""
    if model.parent.resolve() == SHIPPED.resolve():  # not into an installed package
        return Path(f"{model.name}-{engine}")
    return (run or model) / engine


def is_earlier(folder: Path) -> bool:
    """Whether a folder of a run is named as a model that it had before it was extended."""
    return EARLIER.fullmatch(folder.name) is not None


def enclosing_run(model: Path) -> Path | None:
    """The run that a folder lies in, where it holds the run's model or an earlier one."""
    whole = model.resolve()
    if whole.name != "model" and not is_earlier(whole):
        return None
    try:
        if "data" not in _recipe(whole.parent):
            return None
    except ValueError:  # the model can be used without it
        return None
    return model.parent if model.name == whole.name else whole.parent


def _exported(name: Path) -> Place:
    """A folder that `regard export` wrote, or the default one for this model, if it is of the model's weights."""
    from ..models.saved_weights import read

    if (name / "model.bin").is_file():
        return Place(name, None)
    folder, run = find(name)
    written = export_folder(folder, run, "ctranslate2")
    if not written.is_dir():
        _, config = read(folder)
        parts = [config.get(side) or {} for side in ("encoder", "decoder")]
        if any(part.get("kind") != "transformer" or part.get("reads", "text") != "text" for part in parts):
            raise ValueError(f"the engine ctranslate2 runs Transformers that translate; {name} is none: use torch")
        raise ValueError(
            f"{name} was not written for CTranslate2 yet: there is no folder {written}; "
            f"write it with: regard export {name}, or give the folder you wrote it into instead of {name}"
        )
    if is_outdated(written, folder):
        raise ValueError(
            f"{written} was exported from other weights than those of {folder}, which was trained or replaced since: "
            f"export it again with: regard export {name} --force"
        )
    return Place(written, run or enclosing_run(folder))


def shipped() -> list[str]:
    return sorted(folder.parent.name for folder in SHIPPED.glob("*/config.json"))


def _recipe(run: Path | None) -> dict[str, Any]:
    """The recipe of a run as it is in the file; {} without one."""
    if run is None or not (run / RECIPE).is_file():
        return {}
    try:
        return tomllib.loads((run / RECIPE).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{run / RECIPE} is not TOML: {error}") from None


def _search(recipe: dict[str, Any], run: Path | None) -> SearchSettings:
    file, section = (run or Path()) / RECIPE, recipe.get("search", {})
    if not isinstance(section, dict):
        raise ValueError(f"{file}: search is {section!r:.40}; it should be a section")
    settings = {name: section[name] for name in ("beams", "length_penalty", "coverage_penalty") if name in section}
    for name, value in settings.items():
        if type(value) not in ((int,) if name == "beams" else (int, float)) or value < 0:
            raise ValueError(f"{file}: search.{name} is {value!r:.40}; it should be a number ≥ 0")
    return settings  # type: ignore[return-value]


# Exports: where they are, when they may be replaced, and which weights they were made from

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
