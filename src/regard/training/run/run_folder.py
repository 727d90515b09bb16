"""The folder of a run: the paths in it, and the checks before training starts."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import tomllib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...atomic_write import is_leftover, make_folder, remove_unfinished, write_text
from ...decoding.load_model_and_tokenizers import is_earlier
from ...json_file import DamagedFileError
from ..recipe.recipe_loader import load_recipe
from ..recipe.recipe_writer import recipe_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..recipe.recipe import Recipe

RECIPE = "recipe.toml"
# What a run and its commands write, beside the recipe and the checkpoints.
OWNED = (
    "model",
    "data",
    "metrics.csv",
    "tensorboard",
    "wandb",
    "mlflow",
    "results.json",
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
        self.metrics = folder / "metrics.csv"
        self.model = folder / "model"  # the trained model, for `from_pretrained`; written when the run is finished

    def __repr__(self) -> str:
        """The folder, how far the run is, and the best score of its validations."""
        from ..checkpoint import read_checkpoint

        parts = [repr(str(self.folder)), "finished" if self.model.exists() else "not finished"]
        with suppress(DamagedFileError, OSError, KeyError):
            checkpoint = read_checkpoint(self.last)
            standing = checkpoint["regard"]["standing"]
            parts.append(f"update {checkpoint['global_step']:,}")
            if standing["best_update"]:
                column = self.metrics.read_text(encoding="utf-8").partition("\n")[0].rpartition(",")[2]
                parts.append(f"best {column} {abs(standing['best']):.4g} at update {standing['best_update']:,}")
        return f"Run({', '.join(parts)})"

    @classmethod
    def create(cls, recipe: Recipe, folder: Path, *, force: bool = False) -> Run:
        """A new folder with its recipe. An existing run is replaced only if it never began, or with `force`."""
        if folder.exists() and not _is_empty(folder):
            there = cls(folder, recipe)
            if not ((folder / RECIPE).is_file() and there.checkpoints.is_dir()):
                raise ValueError(f"{folder} exists and is no run; {there.other_folder}")
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
    def open(cls, folder: Path) -> Run:
        """An existing run of a recipe."""
        file = cls.recipe_file(folder)
        if not has_corpus(file):
            raise ValueError(
                f"{folder} is a run that fit(model, …) began in Python, and its model and batches are not in the "
                "folder: continue it there, with fit(model, folder, resume=True, train=…, valid=…)"
            )
        return cls(folder, load_recipe(file))

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

    @property
    def other_folder(self) -> str:
        """How to train into another folder, for messages."""
        return "choose another folder" + (" with --out" if self.has_recipe else ", the second argument of fit")

    @staticmethod
    def recipe_file(folder: Path) -> Path:
        """The recipe.toml of an existing run."""
        file = folder / RECIPE
        if not file.is_file():
            raise ValueError(f"{folder} is no run: it holds no {RECIPE}")
        return file

    def extend(self, recipe: Recipe, update: int) -> Run:
        """The same run with a changed recipe. A finished model, of this update, moves to model-UPDATE/.

        Where that exists, to model-UPDATE-2/ and so on: nothing is replaced.
        The recipe is written last: killed before, the run is finished again from its checkpoint.
        """
        if self.model.exists():
            self.model.rename(self._free_name(f"model-{update}"))
        write_text(self.folder / RECIPE, recipe_toml(recipe))
        return Run(self.folder, recipe)

    def _free_name(self, name: str) -> Path:
        names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
        return next(path for path in map(self.folder.joinpath, names) if not os.path.lexists(path))

    @staticmethod
    @contextmanager
    def alone(folder: Path) -> Iterator[None]:
        """Lock the folder: two processes that train into it would overwrite each other's files."""
        try:
            import fcntl
        except ModuleNotFoundError:  # not on Windows
            yield
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released however the process ends
        except BlockingIOError:
            os.close(handle)
            raise ValueError(f"another process trains into {folder}; wait for it, or choose another folder") from None
        try:
            yield
        finally:
            os.close(handle)

    def require(self, size: int) -> None:
        """Raise an error now if the folder is not writable, or the disk has not `size` bytes for checkpoints.

        Checkpoints of an interrupted run count as part of `size`.
        """
        with tempfile.TemporaryFile(dir=self.checkpoints):
            pass
        free = shutil.disk_usage(self.folder).free
        needed = size - sum(file.stat().st_size for file in self.checkpoints.iterdir() if file.is_file())
        if free < needed:
            raise OSError(
                f"the disk of {self.folder} has {free / 1e6:,.0f} MB free, and this run may need "
                f"{needed / 1e6:,.0f} MB more: free some, {self.other_folder}, or lower training.average"
            )


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
        training = recipe.training.model_copy(update={"init": str(Path(init).absolute())})
        recipe = recipe.model_copy(update={"training": training})
    root = getattr(recipe.data, "root", "$")
    if "$" in root:
        return recipe
    data = recipe.data.model_copy(update={"root": str(Path(root).expanduser().absolute())})
    return recipe.model_copy(update={"data": data})


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
