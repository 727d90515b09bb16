"""A start of the command: the run's folder, locked, with a record of the start in it."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from ...atomic_write import make_folder
from ...json_file import DamagedFileError
from ..preparation import write_settings
from ..run.checkpoint_manifest import read_checkpoint
from ..run.provenance import Provenance
from ..run.run_extension import RunExtension
from ..run.run_folder import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..recipe.recipe import Recipe


@contextmanager
def run_session(
    run: Run, recipe: Recipe, changed: dict[str, list[Any]], *, resume: bool, force: bool
) -> Iterator[RunExtension]:
    """The run's folder, made, locked and with this start recorded by the first of all processes.

    A start that changes settings is checked here, and recorded by `RunExtension.begin`.
    """
    first, folder = is_first_process(), run.folder
    if first and not folder.exists():
        make_folder(folder)
    with Run.alone(folder) if first and folder.is_dir() else nullcontext():
        if first and not resume:
            Run.create(recipe, folder, force=force)
        update = _last_update(run)
        if first and changed:
            _check_extension(run, recipe, update, changed)
        elif first and not run.model.exists():
            Provenance(run.folder).begin_session(update, {})
        yield RunExtension(run, recipe, update, changed)


def is_first_process() -> bool:
    """Whether this is the first of all processes, which makes the folder."""
    from lightning_utilities.core.rank_zero import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) == 0


def _last_checkpoint(run: Run) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; whether it is whole is checked before training resumes."""
    for file in (run.last, run.previous):
        with suppress(DamagedFileError):
            if file.is_file():
                return read_checkpoint(file)
    return None


def _last_update(run: Run) -> int:
    checkpoint = _last_checkpoint(run)
    return 0 if checkpoint is None else int(checkpoint["global_step"])


def _check_extension(run: Run, recipe: Recipe, update: int, changed: dict[str, list[Any]]) -> None:
    settings = recipe.training
    if settings.updates < update:
        raise ValueError(
            f"the run is at update {update:,}, and training.updates = {settings.updates:,} is less: raise it"
        )
    if (checkpoint := _last_checkpoint(run)) is not None:
        from ..fine_tuning.parameter_groups import require_part_groups

        rate, _ = changed.get("training.rate", (settings.rate, settings.rate))
        require_part_groups(checkpoint, settings, rate, run.folder)
    write_settings(run)  # a run of an earlier version has not written them
