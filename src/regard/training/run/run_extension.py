"""Changes to the recipe of a run that has begun: more updates, more data, another rate; but the same model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...decoding.export_folder import record_run_exports
from ...json_file import DamagedFileError
from .provenance import Provenance
from .run_folder import RECIPE, has_corpus

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe
    from .run_folder import Run

OPEN = ("about", "data.", "training.", "search.")
"""What may change, by name or by how it begins …"""
CLOSED = {
    "data.longest": "the model has been built for it",
    "training.init": "training starts from another model only once",
    "training.init_parts": "training starts from another model only once",
    "training.init_vocabulary": "the vocabulary has been made",
    "training.freeze": "the optimizer's state in the checkpoint is of the parts that learn",
    "training.part_rates": "the optimizer's state in the checkpoint has a group for each of these parts",
    "training.ema": "the checkpoint has that moving average, or none",
    "training.strategy": "it decides in which form checkpoints are written",
}
"""… except these keys, each for its reason."""
MODEL = "it decides what the model is made of, or how it began"
"""The reason for all other keys."""


class RunExtension:
    """A start of the command in a run that has begun, with the settings that it changes; with none, it does nothing.

    Until `begin` the run's folder is as it was, but for data/, which says itself from which settings it was prepared.
    """

    def __init__(self, run: Run, recipe: Recipe, update: int, changed: dict[str, list[Any]]) -> None:
        """`recipe` is the changed one; the run is at this update."""
        self._run, self._recipe, self._update, self._changed = run, recipe, update, changed
        self.has_begun = not changed

    def begin(self) -> None:
        """Record the session, move a finished model away and write the recipe, when nothing is left to be checked.

        Exports and results of an earlier version first get a record of the model that they are of. In this order:
        after a kill between any two, the recipe is still the old one, and so are `changed_since` and what resuming
        makes of the checkpoint.
        """
        if self.has_begun:
            return
        from .results_file import record_run_results  # imports scores, which training alone does not need

        record_run_exports(self._run.folder, self._run.model)
        with suppress(DamagedFileError):  # what cannot be read is nobody's score
            record_run_results(self._run.folder)
        Provenance(self._run.folder).begin_session(self._update, self._changed)
        self._run.extend(self._recipe, self._update)
        self.has_begun = True

    def changed_since(self, update: int) -> set[str]:
        """The settings that are not those with which the checkpoint of this update was written.

        Several sessions may have changed them: a session that is killed before its first checkpoint is followed by
        one from the same update. One that was killed before it wrote the recipe changed nothing.
        """
        former = Provenance(self._run.folder).settings_at(update)
        for key, (old, _) in self._changed.items():
            former.setdefault(key, old)
        now = flat_settings(self._recipe.to_dict())
        return {key for key, old in former.items() if json.dumps(old) != json.dumps(now.get(key))}


def changed_settings(old: Recipe, new: Recipe) -> dict[str, list[Any]]:
    """The settings that differ: dotted key → [old value, new value]."""
    before, after = flat_settings(old.to_dict()), flat_settings(new.to_dict())
    keys = dict.fromkeys([*before, *after])
    return {key: [before.get(key), after.get(key)] for key in keys if before.get(key) != after.get(key)}


def require_open(changed: dict[str, list[Any]], folder: object) -> None:
    """Raise an error that names a setting which a run that has begun cannot change, why, and which ones can."""
    for key, (old, new) in changed.items():
        if not key.startswith(OPEN) or key in CLOSED:
            raise ValueError(
                f"{key} cannot change in a run that has begun: {CLOSED.get(key, MODEL)}. In {folder} it is "
                f"{old!r:.60}, and {new!r:.60} was given. The other keys of [data], [training] and [search] can "
                f"change, except {', '.join(other for other in CLOSED if other != key)}. For another {key}, begin a "
                f"new run, perhaps with {weights_source(folder)}"
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
        if isinstance(value, dict) and value and key != "part_rates":
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
