"""The folder of a run: what is in it, and what must be so before training starts."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import remove_unfinished, write_text
from ..recipe.recipe_loader import load_recipe
from ..recipe.recipe_toml import recipe_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..recipe.recipe import Recipe

RECIPE = "recipe.toml"
# What a run and its commands write, beside the recipe and the checkpoints.
OWNED = ("model", "data", "metrics.csv", "tensorboard", "results.json", "ctranslate2")


class Run:
    """The folder runs/NAME-SEED/ and its recipe."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        self.data = folder / "data"  # tokenizers and encoded corpora
        self.checkpoints = folder / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"  # everything that --resume needs
        self.metrics = folder / "metrics.csv"
        self.model = folder / "model"  # the trained model, for `from_pretrained`; written when the run is finished

    @classmethod
    def create(cls, recipe: Recipe, folder: Path, *, force: bool = False) -> Run:
        """A new folder with its recipe. What is there stays, but for a run that never began, or any with `force`."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            there = cls(folder, recipe)
            if not ((folder / RECIPE).is_file() and there.checkpoints.is_dir()):
                raise ValueError(f"{folder} is there already and is no run; choose another folder with --out")
            # A run whose data never came together (a mistake in a file, say) has nothing to go on with, or to lose.
            begun = there.data.exists() or any(there.checkpoints.iterdir())
            if begun and not force:
                raise ValueError(f"{folder} holds a run; go on with --resume {folder}, or replace it with --force")
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, recipe)
        write_text(folder / RECIPE, recipe_toml(recipe))
        run.checkpoints.mkdir()
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that was begun before."""
        if not (folder / RECIPE).is_file():
            raise ValueError(f"{folder} is no run: it holds no {RECIPE}")
        return cls(folder, load_recipe(folder / RECIPE))

    @staticmethod
    @contextmanager
    def alone(folder: Path) -> Iterator[None]:
        """Nobody else trains into the folder meanwhile: two would take each other's files for their own."""
        try:
            import fcntl
        except ModuleNotFoundError:  # not on Windows
            yield
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system lets go of it however the process ends
        except BlockingIOError:
            os.close(handle)
            raise ValueError(f"another `regard train` is at work in {folder}; wait for it, or choose --out") from None
        try:
            yield
        finally:
            os.close(handle)

    def require(self, size: int) -> None:
        """An error now rather than after hours: the folder takes files, and the disk has `size` bytes for checkpoints.

        Those that an interrupted run left have their room already.
        """
        with tempfile.TemporaryFile(dir=self.checkpoints):
            pass
        free = shutil.disk_usage(self.folder).free
        needed = size - sum(file.stat().st_size for file in self.checkpoints.iterdir() if file.is_file())
        if free < needed:
            raise OSError(
                f"the disk of {self.folder} has {free / 1e6:,.0f} MB free, and this run may need "
                f"{needed / 1e6:,.0f} MB more: free some, choose another folder with --out, or lower training.average"
            )


def anchored(recipe: Recipe) -> Recipe:
    """With its data's folder named in full, so that the run can be used from another folder than it was begun in.

    What the environment names stays the environment's: that is how a run moves to another machine.
    """
    root = getattr(recipe.data, "root", "$")
    if "$" in root:
        return recipe
    data = recipe.data.model_copy(update={"root": str(Path(root).expanduser().absolute())})
    return recipe.model_copy(update={"data": data})


def _clear(folder: Path) -> None:
    """Remove what a run wrote, its marks last: cut short, it is still a run. What others put there stays."""
    remove_unfinished(folder)
    for name in (*OWNED, "checkpoints", RECIPE):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
