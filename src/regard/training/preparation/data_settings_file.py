"""data/settings.json of a run: the [data] section that its corpora were prepared from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...atomic_write import write_text
from ...json_file import read_object

if TYPE_CHECKING:
    from pathlib import Path

    from ..run.run_folder import Run

NAME = "settings.json"


def write_settings(run: Run, folder: Path | None = None) -> None:
    """Into a folder that is being prepared; or, where the file is missing, into the one that is there."""
    there = run.data / NAME
    if folder is None and (not run.data.exists() or there.exists()):
        return
    text = json.dumps({"data": run.recipe.data.model_dump()}, indent=1) + "\n"
    write_text(there if folder is None else folder / NAME, text)


def settings_changed(run: Run) -> bool:
    """Whether data/ was prepared from other settings than those of the recipe."""
    return bool(changed_keys(run))


def changed_keys(run: Run) -> set[str]:
    """The keys of [data] that are not those that data/ was prepared from.

    A key that the file lacks came with a later version of regard: the data was prepared with its default.
    """
    file = run.data / NAME
    if not file.is_file():
        return set()
    data, stored = run.recipe.data, read_object(file).get("data")
    now = data.model_dump(mode="json")
    if not isinstance(stored, dict):
        return set(now)
    defaults = {name: field.default for name, field in type(data).model_fields.items()}
    added = {name: value for name, value in now.items() if name not in stored and value == defaults[name]}
    former = {**added, **stored}
    return {name for name in {**former, **now} if name not in former or name not in now or former[name] != now[name]}
