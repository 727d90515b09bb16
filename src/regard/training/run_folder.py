"""Run: the folder of a training run and the files in it.

provenance.json of a run: with what, from what and how it was trained, one entry per session.

A session is one start of the command: the first, and each `--resume`. The file is for people and for the model card;
training reads only which settings a session changed.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..decoding.model_folders import is_earlier, record_run_exports
from ..files import is_leftover, locked_folder, make_folder, read_object, remove_unfinished, sha256, write_text
from ..wording import is_secret, redacted
from .recipe import recipe_toml
from .recipe_files import load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from .recipe import Recipe

RECIPE, METRICS, RESULTS = "recipe.toml", "metrics.csv", "results.json"
# What a run and its commands write, beside the recipe and the checkpoints.
OWNED = (
    "model",
    "data",
    METRICS,
    "tensorboard",
    "wandb",
    "mlflow",
    RESULTS,
    "ctranslate2",
    "onnx",
    "provenance.json",
)


class Run:
    """The folder runs/NAME-SEED/ and its recipe."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        self.data = folder / "data"  # tokenizers and encoded corpora
        self.checkpoints = folder / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"  # everything that --resume needs
        self.previous = self.checkpoints / "previous.ckpt"  # the one before, for when the last is damaged
        self.metrics = folder / METRICS
        self.model = folder / "model"  # the trained model, for `from_pretrained`; written when the run is finished

    @classmethod
    def create(cls, recipe: Recipe, folder: Path, *, force: bool = False) -> Run:
        """A new folder with its recipe. An existing run is replaced only if it never began, or with `force`."""
        if folder.exists() and not _is_empty(folder):
            there = cls(folder, recipe)
            if not ((folder / RECIPE).is_file() and there.checkpoints.is_dir()):
                how = " with --out" if there.has_recipe else ", the second argument of fit"
                raise ValueError(f"{folder} exists and is no run; choose another folder{how}")
            # A run whose data could not be prepared (an error in a file, say) has nothing to lose.
            begun = there.data.exists() or any(there.checkpoints.iterdir())
            if begun and not force:
                replaced = "--force" if there.has_recipe else "force=True"
                raise ValueError(
                    f"{folder} holds a run; continue it with {there.continuation}, or replace it with {replaced}"
                )
            _clear(folder)
        run = cls(folder, recipe)
        make_folder(run.checkpoints)
        remove_unfinished(folder)
        write_text(folder / RECIPE, recipe_toml(recipe))  # last: a folder with a recipe is a run
        return run

    @classmethod
    def open(cls, folder: Path, *, continues: bool = False) -> Run:
        """An existing run of a recipe; one that continues has no settings that this version cannot follow."""
        file = cls.recipe_file(folder)
        if not has_corpus(file):
            raise ValueError(
                f"{folder} is a run that fit(model, …) began in Python, and its model and batches are not in the "
                "folder: continue it there, with fit(model, folder, resume=True, train=…, valid=…)"
            )
        return cls(folder, load_recipe(file, finished=not continues))

    @property
    def has_recipe(self) -> bool:
        """Whether a recipe describes its model and corpus; otherwise `fit(model, …)` was given them."""
        return hasattr(self.recipe, "data")

    @property
    def continuation(self) -> str:
        """What continues this run after an interruption: the command, or the call in Python."""
        if self.has_recipe:
            return f"regard train --resume {self.folder}"
        return f"fit(model, {str(self.folder)!r}, resume=True, train=…, valid=…)"

    @staticmethod
    def recipe_file(folder: Path) -> Path:
        """The recipe.toml of an existing run."""
        file = folder / RECIPE
        if not file.is_file():
            raise ValueError(f"{folder} is no run: it holds no {RECIPE}")
        return file

    def extend(self, recipe: Recipe, update: int) -> Run:
        """The same run with a changed recipe. A finished model, of this update, moves to model-UPDATE/ with its scores.

        Where that exists, to model-UPDATE-2/ and so on: nothing is replaced.
        The recipe is written last: killed before, the run is finished again from its checkpoint.
        """
        if self.model.exists():
            if (self.folder / RESULTS).is_file():
                (self.folder / RESULTS).replace(self.model / RESULTS)
            self.model.rename(self._free_name(f"model-{update}"))
        write_text(self.folder / RECIPE, recipe_toml(recipe))
        return Run(self.folder, recipe)

    def _free_name(self, name: str) -> Path:
        names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
        return next(path for path in map(self.folder.joinpath, names) if not os.path.lexists(path))

    @staticmethod
    def alone(folder: Path) -> AbstractContextManager[None]:
        """Lock the folder: two processes that train into it would overwrite each other's files."""
        return locked_folder(folder, f"another process trains into {folder}; wait for it, or choose another folder")


def has_corpus(file: Path) -> bool:
    """Whether a recipe.toml has a section [data], as every recipe has; what cannot be read is left to its loader."""
    try:
        return "data" in tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return True


def holds_run(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / RECIPE).is_file()


def anchored(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths in data.root and training.init: the run can be used from any working directory.

    A root that names an environment variable stays as it is: so a run can move to another machine.
    """
    init = recipe.training.init
    if init and Path(init).is_dir():
        recipe = recipe.with_settings("training", init=str(Path(init).absolute()))
    root = getattr(recipe.data, "root", "$")
    if "$" in root:
        return recipe
    return recipe.with_settings("data", root=str(Path(root).expanduser().absolute()))


def _is_empty(folder: Path) -> bool:
    """Whether a folder has nothing in it, or only what a power cut left of making a run: its recipe comes last."""
    if not folder.is_dir():
        return False
    left = [path for path in folder.iterdir() if not is_leftover(path)]
    return all(path.name == "checkpoints" and path.is_dir() and not any(path.iterdir()) for path in left)


def _clear(folder: Path) -> None:
    """Remove what a run wrote, its recipe last: interrupted, it is still a run. Other files stay."""
    remove_unfinished(folder)
    earlier = (path.name for path in folder.iterdir() if is_earlier(path))
    for name in (*OWNED, *earlier, "checkpoints", RECIPE):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


NAME = "provenance.json"
PACKAGES = ("regard", "torch", "numpy", "tokenizers", "safetensors", "triton")
VARIABLES = ("REGARD_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "SLURM_JOB_ID")
"""Names, or how they begin, of the environment variables that are recorded, without those that hold secrets."""
GIT_SECONDS = 10
"""After which the commit counts as unknown."""


class Provenance:
    """The record of a run. `data` and `init` have the SHA-256 of the files that it was trained from."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self._values = read_object(self.file, "remove it") if self.file.is_file() else {"sessions": []}

    @property
    def sessions(self) -> list[dict[str, Any]]:
        return [each for each in self._values.get("sessions", []) if isinstance(each, dict)]

    def begin_session(self, update: int, changed: dict[str, list[Any]]) -> None:
        """Add a session that starts after this update; `changed` has the old and the new value of each setting."""
        session = {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "after_update": update,
            "command": command(),
            "changed": changed,
            "versions": versions(),
            "commit": commit(Path.cwd()),
            "environment": environment(),
        }
        self._values["sessions"] = [*self.sessions, session]
        self._write()

    def record_files(self, key: str, files: Iterable[Path], root: Path) -> None:
        """The SHA-256 of files, by their path below `root`."""
        self._values[key] = {
            (file.relative_to(root) if file.is_relative_to(root) else file).as_posix(): sha256(file) for file in files
        }
        self._write()

    def card(self) -> str:
        """The lines of the model card: command, versions, commit and checksums."""
        if not self.sessions:
            return ""
        lines = []
        for session in self.sessions:
            if session["after_update"] == 0 or session["changed"]:
                lines.append(f"    {session['command']}\n")
        last = self.sessions[-1]
        made = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        lines.append(f"Versions: {made}." + (f" Commit {last['commit'][:12]}." if last["commit"] else ""))
        for key, heading in (("data", "Data"), ("init", "Started from")):
            files = self._values.get(key) or {}
            lines += [f"\n{heading} (SHA-256):\n"] if files else []
            lines += [f"- `{name}` {digest[:16]}…" for name, digest in files.items()]
        return "\n".join(lines)

    def _write(self) -> None:
        self._values = redacted(self._values)
        write_text(self.file, json.dumps(self._values, indent=1, ensure_ascii=False) + "\n")


def command() -> str:
    """The command as it was typed, or the program that called `fit`."""
    program = Path(sys.argv[0]).name
    return shlex.join(["regard" if program in ("regard", "__main__.py") else program, *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide results, those that are installed."""
    import torch

    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def environment() -> dict[str, Any]:
    import torch

    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "variables": {name: value for name, value in sorted(os.environ.items()) if recorded(name)},
    }


def recorded(variable: str) -> bool:
    return variable.startswith(VARIABLES) and not is_secret(variable)


def commit(folder: Path) -> str | None:
    """The commit that is checked out in a folder, if that is in a Git repository of this user.

    `rev-parse` runs nothing that the repository's configuration names (`git status` would: core.fsmonitor).
    """
    command = ["git", "--no-pager", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):  # no Git, no repository, no commit yet
        return None
    return done.stdout.strip()


OPEN = ("about", "data.root", "training.", "search.")
"""What may change, by name or by how it begins …"""
CLOSED = {
    "training.init": "training starts from another model only once",
    "training.init_parts": "training starts from another model only once",
    "training.freeze": "the optimizer's state in the checkpoint is of the parts that learn",
    "training.optimizer": "the checkpoint has the state of that one",
    "training.ema": "the checkpoint has that moving average, or none",
    "training.strategy": "it decides in which form checkpoints are written",
}
"""… except these keys, each for its reason."""
DATA = "a run has one corpus, prepared once"
MODEL = "it decides what the model is made of, or how it began"
"""The reasons for all other keys: those of [data], and the rest."""


class RunExtension:
    """A start of the command in a run that has begun, with the settings that it changes; with none, it does nothing.

    Until `begin` the run's folder is as it was.
    """

    def __init__(self, run: Run, recipe: Recipe, update: int, changed: dict[str, list[Any]]) -> None:
        """`recipe` is the changed one; the run is at this update."""
        self._run, self._recipe, self._update, self.changed = run, recipe, update, changed
        self.has_begun = not changed

    def begin(self) -> None:
        """Record the session, move a finished model away and write the recipe, when nothing is left to be checked.

        Exports of an earlier version first get a record of the model that they are of. In this order: after a kill
        between any two, the recipe is still the old one.
        """
        if self.has_begun:
            return
        record_run_exports(self._run.folder, self._run.model)
        Provenance(self._run.folder).begin_session(self._update, self.changed)
        self._run.extend(self._recipe, self._update)
        self.has_begun = True


def changed_settings(old: dict[str, Any], new: dict[str, Any]) -> dict[str, list[Any]]:
    """The settings that differ between two recipes: dotted key → [old value, new value]."""
    before, after = flat_settings(old), flat_settings(new)
    keys = dict.fromkeys([*before, *after])
    return {key: [before.get(key), after.get(key)] for key in keys if before.get(key) != after.get(key)}


def require_open(changed: dict[str, list[Any]], folder: object) -> None:
    """Raise an error that names a setting which a run that has begun cannot change, why, and which ones can."""
    for key, (old, new) in changed.items():
        if not key.startswith(OPEN) or key in CLOSED:
            reason = CLOSED.get(key, DATA if key.startswith("data.") else MODEL)
            raise ValueError(
                f"{key} cannot change in a run that has begun: {reason}. In {folder} it is {old!r:.60}, and "
                f"{new!r:.60} was given. The other keys of [training] and [search] can change, except "
                f"{', '.join(other for other in CLOSED if other != key)}. For another {key}, begin a new run, perhaps "
                f"with {weights_source(folder)}"
            )


def weights_source(folder: object) -> str:
    """How a new run takes the weights of the one in this folder."""
    file = Path(str(folder)) / RECIPE
    if not file.is_file() or has_corpus(file):
        return f"training.init={folder}"
    return f"a model into which the weights of {folder} are loaded before fit"


def flat_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def validation_column(metrics: Path) -> str:
    """What the validations measure beside the loss: the last column."""
    return metrics.read_text(encoding="utf-8").partition("\n")[0].rpartition(",")[2].strip()


def learning_curve(metrics: Path, column: str) -> list[tuple[float, float]]:
    """The points (update, value) of a column, such as "valid_nll"; lines without a finite value are left out."""
    points = []
    with metrics.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if column not in row:
                raise ValueError(f"{metrics} has no column {column}; it has {', '.join(row)}")
            if row[column] and math.isfinite(float(row[column])):
                points.append((float(row["update"]), float(row[column])))
    return points
